"""The causes of rejected batches are found in a logarithmic number of transactions, with every key in order."""

from math import ceil, log2

from hypothesis import given
from hypothesis import strategies as st

from outbox.core.holds.bisection import Bisection


def search(ids, causes, batch_max, late=None):
    """Send as a lane does: batches from the front, a refused single record is put aside.

    `late` maps the number of a transaction to ids that become visible just before it. Returns delivered ids in order,
    causes in the order in which they were found, and how many transactions were refused or were made smaller.
    """
    waiting, delivered, found, extra = sorted(ids), [], [], 0
    state, number = Bisection(), 0
    while waiting:
        waiting = sorted(waiting + (late or {}).get(number, []))
        batch = waiting[:batch_max]
        batch = batch[: state.take(batch)]
        extra += state.is_searching
        if causes & set(batch):
            state = state.refused(batch)
            if len(batch) == 1:
                found += batch
                waiting = waiting[1:]
        else:
            state = state.cleared(batch)
            delivered += batch
            waiting = waiting[len(batch) :]
        number += 1
    assert not state.is_searching
    return delivered, found, extra


@given(st.integers(1, 2000), st.data())
def test_one_cause_is_found_in_log2_steps(count, data):
    cause = data.draw(st.integers(0, count - 1))
    delivered, found, extra = search(range(count), {cause}, batch_max=count)
    assert found == [cause]
    assert delivered == [id_ for id_ in range(count) if id_ != cause]
    assert extra <= ceil(log2(count)) + 1


@given(st.sets(st.integers(0, 400), min_size=1), st.data(), st.integers(1, 200))
def test_every_cause_is_found_and_nothing_else_is_held(ids, data, batch_max):
    causes = data.draw(st.sets(st.sampled_from(sorted(ids))))
    delivered, found, extra = search(ids, causes, batch_max)
    assert found == sorted(causes)
    assert delivered == sorted(ids - causes)
    assert extra <= len(causes) * (ceil(log2(batch_max)) + 1)


@given(st.sets(st.integers(0, 400), min_size=2), st.data())
def test_records_that_turn_up_between_the_suspects_do_not_lead_astray(ids, data):
    ids = sorted(ids)
    causes = data.draw(st.sets(st.sampled_from(ids), min_size=1))
    latecomers = data.draw(st.sets(st.sampled_from(ids)))
    turns = data.draw(st.lists(st.integers(0, 12), min_size=len(latecomers), max_size=len(latecomers)))
    late = {}
    for turn, id_ in zip(turns, sorted(latecomers), strict=True):
        late.setdefault(turn, []).append(id_)
    early = [id_ for id_ in ids if id_ not in latecomers]
    delivered, found, _ = search(early, causes, 64, late)
    seen = sorted([*delivered, *found])
    assert seen == sorted(set(seen)), "nothing is sent twice"
    assert set(found) <= causes
    assert not causes & set(delivered)


@given(st.integers(1, 300), st.data())
def test_reports_that_name_the_cause_s_companions_shorten_the_search(count, data):
    """The brokers refuse what travels in one request to one partition; other records are innocent."""
    cause = data.draw(st.integers(0, count - 1))
    partitions = data.draw(st.integers(1, 12))
    state, waiting, extra, delivered = Bisection(), list(range(count)), 0, []
    while cause in waiting:
        batch = waiting[: state.take(waiting)]
        if cause in batch:
            reported = [id_ for id_ in batch if id_ % partitions == cause % partitions]
            state = state.refused(reported)
            if len(reported) == 1:
                waiting.remove(cause)
        else:
            delivered += batch
            state = state.cleared(batch)
            waiting = waiting[len(batch) :]
        extra += 1
    suspects = ceil(count / partitions)
    assert extra <= 1 + ceil(log2(max(1, suspects))) + 2
    assert not state.is_searching
    assert delivered + waiting == [id_ for id_ in range(count) if id_ != cause], "in order"


def test_what_stands_before_the_last_suspect_goes_first():
    state = Bisection().refused([4, 9]).cleared([4])
    assert state.take([5, 6, 9, 10]) == 2
    assert state.take([9, 10]) == 1


def test_a_batch_that_is_refused_only_once_leaves_nobody_suspected():
    state = Bisection().refused([1, 2, 3, 4])
    assert state.take([1, 2, 3, 4]) == 2
    state = state.cleared([1, 2])
    assert (state.suspects, state.take([3, 4])) == ({3, 4}, 1)
    assert not state.cleared([3]).cleared([4]).is_searching


def test_a_refusal_within_the_search_narrows_it_to_what_was_refused():
    state = Bisection().refused(range(100)).refused(range(50))
    assert state.suspects == set(range(50))
    assert state.take(range(100)) == 25


def test_a_suspect_that_is_held_or_gone_does_not_keep_transactions_small():
    state = Bisection().refused(range(10)).among([8, 9, 10, 11])
    assert state.suspects == {8, 9}
    assert state.among([10, 11]).take([10, 11]) == 2


@given(st.integers(2, 2000), st.data())
def test_a_right_guess_needs_two_transactions_and_a_wrong_one_a_few_more(count, data):
    cause, guess = (data.draw(st.integers(0, count - 1)) for _ in range(2))
    waiting, state, extra = list(range(count)), Bisection().refused(range(count), guess), 0
    while state.is_searching:
        batch = waiting[: state.take(waiting)]
        extra += 1
        if cause in batch:
            state = state.refused(batch)
        else:
            state = state.cleared(batch)
            waiting = waiting[len(batch) :]
    assert waiting[0] == cause
    assert extra <= (2 if guess == cause else ceil(log2(count)) + 3)
