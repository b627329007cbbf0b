"""The election as one member sees it: call, compare effects. No clock, no sleep, no double."""

from __future__ import annotations

from itertools import count
from typing import Any
from uuid import UUID

import pytest

from outbox.core.election.neli import (
    AbandonBatch,
    ConfirmMembership,
    FinishBatch,
    ForeignHeartbeat,
    GoharvestHeartbeat,
    Heartbeat,
    LeaderAcquired,
    LeaderFenced,
    LeaderRefreshed,
    LeaderRevoked,
    LeaveGroup,
    Neli,
    OwnerState,
    PublishHeartbeat,
    UnknownHeartbeat,
    encode_heartbeat,
    parse_heartbeat,
)

TRUST_S = 1.8  # heartbeat_timeout_s less margin_s


def make(lanes: int = 1, database: UUID | None = None) -> Neli:
    ids = count(1)
    return Neli(
        lambda: UUID(int=next(ids)),
        lanes=lanes,
        heartbeat_timeout_s=2.0,
        margin_s=0.2,
        heartbeat_interval_s=0.5,
        revoke_timeout_s=3.0,
        name="here",
        database=database,
    )


def beats(effects: list[Any]) -> list[Heartbeat]:
    return [e.beat for e in effects if isinstance(e, PublishHeartbeat)]


def events(effects: list[Any]) -> list[str]:
    return [type(e).__name__ for e in effects if type(e).__name__.startswith("Leader")]


def lead(neli: Neli, *, offset: int = 10, now: float = 0.0) -> LeaderAcquired:
    [beat] = beats(neli.assigned([0], now))
    [acquired] = neli.heartbeat_seen(0, offset, beat, now)
    assert isinstance(acquired, LeaderAcquired)
    return acquired


def rival(epoch: int | None) -> Heartbeat:
    return Heartbeat(UUID(int=900), UUID(int=901), 1, epoch, "there")


def fenced_by_rival() -> tuple[Neli, Heartbeat]:
    neli = make()
    lead(neli)
    neli.heartbeat_seen(0, 20, rival(20), 0.1)
    [beat] = beats(neli.tick(0.1))
    return neli, beat


def test_assignment_leads_once_the_own_beat_is_read_back() -> None:
    neli = make()
    [beat] = beats(neli.assigned([0], 0.0))
    assert beat.epoch == -1
    assert not neli.may_send(0, 0.0)
    [acquired] = neli.heartbeat_seen(0, 10, beat, 0.1)
    assert acquired == LeaderAcquired(0, beat.leader_id, 10)
    assert neli.may_start(0, 0.1)


def test_partitions_at_or_above_the_lane_count_are_idle() -> None:
    neli = make(lanes=2)
    assert {e.lane for e in neli.assigned([0, 1, 2], 0.0) if isinstance(e, PublishHeartbeat)} == {0, 1}
    assert neli.state(2) is None
    assert neli.revoked([2], 0.1) == []


def test_revoking_another_partition_changes_nothing() -> None:
    neli = make()
    neli.assigned([1, 2], 0.0)
    lead(neli)
    assert neli.revoked([1], 0.2) == []
    assert neli.may_start(0, 0.2)


def test_trust_counts_from_the_sending_of_the_beat() -> None:
    neli = make()
    lead(neli)
    [beat] = beats(neli.tick(0.0))
    neli.heartbeat_seen(0, 11, beat, 1.5)
    assert neli.may_send(0, TRUST_S - 0.01)
    assert not neli.may_send(0, TRUST_S)


def test_a_beat_read_back_too_late_earns_nothing() -> None:
    neli = make()
    [beat] = beats(neli.assigned([0], 0.0))
    assert neli.heartbeat_seen(0, 10, beat, TRUST_S) == []


def test_missing_own_beats_fence() -> None:
    neli = make()
    acquired = lead(neli)
    neli.tick(1.0)
    [fenced, *_] = neli.tick(TRUST_S)
    assert fenced == LeaderFenced(0, acquired.leader_id, "heartbeat-timeout")
    assert neli.leader_id(0) is None


def test_steady_beats_keep_leadership() -> None:
    neli = make()
    lead(neli)
    for turn in range(1, 200):
        now = turn * 0.1
        for beat in beats(neli.tick(now)):
            assert neli.heartbeat_seen(0, 10 + turn, beat, now + 0.01) == []
    assert neli.may_start(0, 20.0)


@pytest.mark.parametrize("beat", [rival(5), rival(None)], ids=["lower-epoch", "candidate"])
def test_last_words_of_an_older_owner_change_nothing(beat: Heartbeat) -> None:
    neli = make()
    lead(neli)
    assert neli.heartbeat_seen(0, 50, beat, 0.1) == []
    assert neli.may_start(0, 0.1)


@pytest.mark.parametrize(
    "beat", [rival(20), rival(-1), GoharvestHeartbeat("reaper")], ids=["higher-epoch", "first-beat", "goharvest"]
)
def test_newer_owner_fences(beat: Heartbeat | GoharvestHeartbeat) -> None:
    neli = make()
    acquired = lead(neli)
    assert neli.heartbeat_seen(0, 20, beat, 0.1) == [LeaderFenced(0, acquired.leader_id, "newer-owner")]
    assert not neli.may_send(0, 0.1)


def test_beats_before_the_own_first_one_are_stale() -> None:
    neli = make()
    [beat] = beats(neli.assigned([0], 0.0))
    assert neli.heartbeat_seen(0, 8, GoharvestHeartbeat("reaper"), 0.05) == []
    assert events(neli.heartbeat_seen(0, 10, beat, 0.1)) == ["LeaderAcquired"]


def test_fenced_resumes_with_a_new_id_and_epoch_after_confirmation() -> None:
    neli, beat = fenced_by_rival()
    assert beat.epoch is None
    [ask] = neli.heartbeat_seen(0, 21, beat, 0.2)
    assert isinstance(ask, ConfirmMembership)
    [acquired] = neli.confirmed(0, ask.ticket, True, 0.3)
    assert acquired == LeaderAcquired(0, beat.leader_id, 21)


def test_no_member_does_not_resume() -> None:
    neli, beat = fenced_by_rival()
    [ask] = neli.heartbeat_seen(0, 21, beat, 0.2)
    assert isinstance(ask, ConfirmMembership)
    assert neli.confirmed(0, ask.ticket, False, 0.3) == []
    assert neli.state(0) is OwnerState.CANDIDATE
    assert neli.confirmed(0, ask.ticket, True, 0.4) == []


def test_a_claim_behind_the_question_voids_its_answer() -> None:
    neli, beat = fenced_by_rival()
    [ask] = neli.heartbeat_seen(0, 21, beat, 0.2)
    assert isinstance(ask, ConfirmMembership)
    neli.heartbeat_seen(0, 22, rival(22), 0.25)
    assert neli.confirmed(0, ask.ticket, True, 0.3) == []


def test_doubt_fences_who_is_no_member() -> None:
    neli = make()
    lead(neli)
    [ask] = neli.doubt(0, 0.1)
    assert isinstance(ask, ConfirmMembership)
    assert events(neli.confirmed(0, ask.ticket, False, 0.2)) == ["LeaderFenced"]


def test_refused_claim_steps_down() -> None:
    neli = make()
    lead(neli)
    assert [e.reason for e in neli.step_down(0, 0.1) if isinstance(e, LeaderFenced)] == ["superseded"]
    assert neli.step_down(0, 0.1) == []


def test_refresh_gives_a_new_id_and_keeps_the_claim() -> None:
    neli = make()
    acquired = lead(neli)
    [refreshed] = neli.refresh(0, 0.1)
    assert isinstance(refreshed, LeaderRefreshed)
    assert refreshed.leader_id != acquired.leader_id
    assert refreshed.epoch == acquired.epoch
    assert neli.refresh(1, 0.1) == []


def test_revocation_waits_for_the_batch_in_hand() -> None:
    neli = make()
    acquired = lead(neli)
    assert neli.revoked([0], 1.0) == [FinishBatch(0, acquired.leader_id, 4.0)]
    assert neli.revoking == (0,)
    assert neli.may_send(0, 3.9)
    assert not neli.may_start(0, 1.0)
    assert neli.released(0, 2.0) == [LeaderRevoked(0, acquired.leader_id)]
    assert neli.revoking == ()


def test_revocation_has_a_deadline() -> None:
    neli = make()
    acquired = lead(neli)
    neli.revoked([0], 1.0)
    assert neli.tick(3.9) == []
    assert not neli.may_send(0, 4.0)
    assert neli.tick(4.0) == [AbandonBatch(0, acquired.leader_id), LeaderRevoked(0, acquired.leader_id)]


def test_lost_fences_at_once_also_while_revoking() -> None:
    for revoked_first in (False, True):
        neli = make()
        acquired = lead(neli)
        if revoked_first:
            neli.revoked([0], 0.1)
        assert neli.lost([0], 0.2) == [LeaderFenced(0, acquired.leader_id, "lost")]
        assert neli.state(0) is None


def test_fenced_then_revoked_names_the_ended_term() -> None:
    neli = make()
    acquired = lead(neli)
    neli.heartbeat_seen(0, 20, rival(20), 0.1)
    assert neli.revoked([0], 0.2) == [LeaderRevoked(0, acquired.leader_id)]


def test_each_acquisition_has_a_new_id() -> None:
    neli = make()
    first = lead(neli)
    neli.lost([0], 0.1)
    assert lead(neli, offset=30, now=0.2).leader_id != first.leader_id


def test_assignment_that_aged_in_a_pause_asks_first() -> None:
    neli = make()
    neli.assigned([0], 0.0)
    [beat] = beats(neli.tick(30.0))
    assert beat.epoch is None  # owns nothing, so it fences nobody
    assert [type(e) for e in neli.heartbeat_seen(0, 10, beat, 30.1)] == [ConfirmMembership]


def test_stop_finishes_then_leaves_and_is_safe_twice() -> None:
    neli = make()
    lead(neli)
    assert [type(e) for e in neli.stop(0.1)] == [FinishBatch]
    assert neli.stop(0.1) == []
    assert [type(e) for e in neli.released(0, 0.2)] == [LeaderRevoked, LeaveGroup]
    assert neli.assigned([0], 0.3) == []


def test_stop_before_anything_leaves_at_once() -> None:
    assert make().stop(0.0) == [LeaveGroup()]


def test_wake_at_names_the_next_beat_and_the_end_of_trust() -> None:
    neli = make()
    assert neli.wake_at() == float("inf")
    lead(neli)
    neli.tick(0.0)
    assert neli.wake_at() == 0.5


def test_topic_made_anew_lowers_the_epoch() -> None:
    neli = make()
    lead(neli, offset=500)
    [beat] = beats(neli.tick(0.0))
    neli.heartbeat_seen(0, 3, beat, 0.1)
    assert neli.epoch(0) == 3
    assert events(neli.heartbeat_seen(0, 9, rival(9), 0.2)) == ["LeaderFenced"]


@pytest.mark.parametrize("epoch", [None, -1, 42])
def test_heartbeat_survives_the_wire(epoch: int | None) -> None:
    beat = Heartbeat(UUID(int=1), UUID(int=2), 7, epoch, "host with % and spaces")
    assert parse_heartbeat(encode_heartbeat(beat)) == beat


def test_older_releases_read_the_payload_to_the_letter() -> None:
    """They end on what they cannot read: what is new goes beside it."""
    beat = Heartbeat(UUID(int=1), UUID(int=2), 7, None, "web 1", UUID(int=3))
    first, second = UUID(int=1), UUID(int=2)
    assert encode_heartbeat(beat) == f"outbox1 {first} {second} 7 - web 1".encode()
    assert parse_heartbeat(encode_heartbeat(beat), UUID(int=3)) == beat


def of(database: int, epoch: int | None) -> Heartbeat:
    return Heartbeat(UUID(int=91), UUID(int=92), 7, epoch, "there", UUID(int=database))


def test_whoever_leads_nothing_gives_way_to_a_leader_of_another_database() -> None:
    neli = make(database=UUID(int=5))
    assert neli.heartbeat_seen(0, 20, of(5, 20), 0.0) == []
    assert neli.heartbeat_seen(0, 20, rival(20), 0.0) == []  # an older release does not tell
    assert neli.heartbeat_seen(0, 20, of(6, None), 0.0) == [ForeignHeartbeat(0, "there", UUID(int=6), True)]
    assert neli.heartbeat_seen(0, 20, of(6, 20), 0.0) == [ForeignHeartbeat(0, "there", UUID(int=6), False)]


@pytest.mark.parametrize(("theirs", "is_rightful"), [(4, False), (6, True)])
def test_of_two_leaders_with_two_databases_one_gives_way(theirs: int, is_rightful: bool) -> None:
    neli = make(lanes=2, database=UUID(int=5))
    lead(neli)
    assert neli.heartbeat_seen(1, 20, of(theirs, None), 0.1) == [ForeignHeartbeat(1, "there", UUID(int=theirs), True)]
    met = ForeignHeartbeat(1, "there", UUID(int=theirs), is_rightful)
    assert neli.heartbeat_seen(1, 20, of(theirs, 20), 0.1) == [met]


@pytest.mark.parametrize(("theirs", "is_rightful"), [(4, False), (6, True)])
def test_of_two_that_begin_at_the_same_moment_one_gives_way(theirs: int, is_rightful: bool) -> None:
    """Each has taken a lane, and reads the other's ownership before its own has come back."""
    neli = make(lanes=2, database=UUID(int=5))
    neli.assigned([0], 0.0)
    met = ForeignHeartbeat(1, "there", UUID(int=theirs), is_rightful)
    assert neli.heartbeat_seen(1, 20, of(theirs, -1), 0.0) == [met]


def test_goharvest_payload_is_understood() -> None:
    assert parse_heartbeat(b"1614000000000000000%host_12_99") == GoharvestHeartbeat("host_12_99")


@pytest.mark.parametrize("payload", [None, b"", b"hello", b"x%y", b"outbox1 broken", b"\xff\xfe"])
def test_strange_payload_is_named_with_the_remedy(payload: bytes | None) -> None:
    with pytest.raises(UnknownHeartbeat, match="LEADER_TOPIC"):
        parse_heartbeat(payload)


def test_who_led_last_is_known_while_the_brokers_are_away() -> None:
    neli = make()
    assert not neli.led_last(0)
    lead(neli)
    assert neli.led_last(0)
    assert events(neli.tick(5.0)) == ["LeaderFenced"]
    neli.lost([0], 8.0)
    assert neli.led_last(0)
    neli.heartbeat_seen(0, 20, rival(None), 9.0)
    assert neli.led_last(0), "a candidate owns nothing"
    neli.heartbeat_seen(0, 21, rival(21), 9.0)
    assert not neli.led_last(0)


@pytest.mark.parametrize("end", ["take", "goharvest", "not-a-member", "revoked", "stopped"])
def test_who_was_replaced_or_gave_back_did_not_lead_last(end: str) -> None:
    neli = make()
    lead(neli)
    if end == "take":
        neli.tick(5.0)  # fenced, and still a candidate
        neli.heartbeat_seen(0, 20, rival(20), 5.1)
    elif end == "goharvest":
        neli.lost([0], 0.2)
        neli.heartbeat_seen(0, 20, GoharvestHeartbeat("there"), 0.3)
    elif end == "not-a-member":
        [question] = neli.doubt(0, 0.1)
        assert isinstance(question, ConfirmMembership)
        neli.confirmed(0, question.ticket, False, 0.2)
    elif end == "revoked":
        neli.revoked([0], 0.2)
    else:
        neli.stop(0.2)
    assert not neli.led_last(0)
