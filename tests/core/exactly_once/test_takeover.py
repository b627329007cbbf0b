"""Every interleaving of several owners of one lane, with the real decisions: nothing committed twice, nothing lost.

A small world: a table (rows, the purged number m, the table's file), Kafka (producer epoch, one transaction, the
ledger's last entry, late EndTxn frames), purge statements that arrive late, and owners that run the loop in atomic
steps. An owner may stall before each step (others simply go on), crash and start anew, believe at any time that it
leads, lose the reply of a commit, or leave a second copy of its EndTxn on the way. The search visits each reachable
world once. Rules that the loop depends on can be left out by name: then the search must find the harm, else it
proves nothing.

This is the one abstract model that stays beside the simulator. The decisions are the product's own; the order of the
steps is written here a second time, for a search must copy a world and compare it with those it has seen. The product's
takeover and purge stop in the middle of a function, which cannot be copied: each of a hundred thousand worlds would be
played again from the beginning. `tests/simulation/exactly_once` runs the product itself, with planted bugs for most of
the rules that are left out here; there a seed draws the order of steps, here every order is tried.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from typing import NamedTuple
from uuid import UUID

import pytest

from outbox.core.exactly_once import decisions as v
from outbox.core.exactly_once.ledger import Entry

NOON = datetime(2026, 1, 1, tzinfo=UTC)
HERE = UUID(int=1)
NEW = 8  # bit i is the row with id i; bit i + 8 the row that got id i after TRUNCATE ... RESTART IDENTITY

OPEN, COMMITTING, ABORTING = range(3)


class Sent(NamedTuple):
    """A ledger entry: batch number and rows. Batch 0: none."""

    batch: int = 0
    rows: int = 0


class Transaction(NamedTuple):
    epoch: int
    status: int
    rows: int
    entry: Sent


class Purge(NamedTuple):
    """The statement, and what its sender knows: 'send' it, 'judge' that it moved nothing, 'compare' the rows."""

    status: str
    batch: int
    rows: int
    deletes: int
    file: int


class Owner(NamedTuple):
    phase: str = "init"
    epoch: int = 0
    acknowledged: int = 0
    number: int = 0
    purged: int = 0
    entry: Sent = Sent()
    rows: int = 0
    file: int = 0
    job: tuple[Purge, ...] = ()


class World(NamedTuple):
    rows: int
    owners: tuple[Owner, ...]
    crashes: int
    troubles: int
    truncations: int
    sent: int = 0
    purged: int = 0
    file: int = 0
    ledger: Sent = Sent()
    transaction: tuple[Transaction, ...] = ()
    epoch: int = 0
    frames: tuple[int, ...] = ()
    late: tuple[Purge, ...] = ()


class Harm(Exception):
    """A promise is broken."""


@cache
def entry_of(sent: Sent) -> Entry | None:
    ids = tuple(bit % NEW for bit in range(2 * NEW) if sent.rows >> bit & 1)
    return Entry(0, sent.batch, HERE, HERE, ids, sent.rows, NOON, newest=0) if sent.batch else None


@cache
def judge(purged: int, sent: Sent, again: int, rows: v.Rows | None = None) -> v.Decision:
    return v.takeover(v.Facts(0, HERE, v.StateRow(1), purged, entry_of(sent), again, rows))


def same_ids(rows: int) -> int:
    ids = (rows | rows >> NEW) & ((1 << NEW) - 1)
    return ids | ids << NEW


class Model:
    """The steps. `without` names rules that are left out; `epochs` bounds how often a producer is initialised."""

    def __init__(self, *, epochs: int, page: int = 1, without: str = "") -> None:
        self.epochs = epochs
        self.page = page
        self.without = frozenset(without.split())

    def steps(self, world: World) -> Iterator[tuple[str, World]]:
        for index, owner in enumerate(world.owners):
            if index and world.owners[index - 1] == owner:
                continue  # alike: what one does the other could do
            for label, changed, after in self.owner_steps(world, owner):
                owners = list(world.owners)
                owners[index] = changed
                yield f"{index} {label}", after._replace(owners=tuple(sorted(owners)))
        yield from self.surroundings(world)

    def surroundings(self, world: World) -> Iterator[tuple[str, World]]:
        for transaction in world.transaction:
            if transaction.status == COMMITTING:
                ledger = transaction.entry if transaction.entry.batch else world.ledger
                yield "markers written", world._replace(transaction=(), ledger=ledger)
            elif transaction.status == ABORTING:
                yield "abort markers written", world._replace(transaction=())
            elif world.troubles:
                aborted = transaction._replace(status=ABORTING)
                fenced = world._replace(transaction=(aborted,), epoch=world.epoch + 1)
                yield "transaction timed out", fenced._replace(troubles=world.troubles - 1)
        for index, epoch in enumerate(world.frames):
            rest = world._replace(frames=world.frames[:index] + world.frames[index + 1 :])
            yield f"late EndTxn of epoch {epoch}", self.end(rest, epoch)
        for index, purge in enumerate(world.late):
            rest = world._replace(late=world.late[:index] + world.late[index + 1 :])
            yield f"late purge of batch {purge.batch}", self.execute(rest, purge)[0]
        if world.truncations:
            fresh = (world.rows | world.sent) << NEW & ~((1 << NEW) - 1) or 1 << NEW
            yield "truncate, restart identity", world._replace(rows=fresh, file=1, truncations=world.truncations - 1)

    def end(self, world: World, epoch: int) -> World:
        """EndTxn(commit) reaches the coordinator: it commits whatever is open under this epoch."""
        if not world.transaction or world.epoch != epoch:
            return world
        transaction = world.transaction[0]
        if transaction.epoch != epoch or transaction.status != OPEN:
            return world
        if world.sent & transaction.rows:
            raise Harm("a record is committed twice")
        return world._replace(
            sent=world.sent | transaction.rows, transaction=(transaction._replace(status=COMMITTING),)
        )

    def execute(self, world: World, purge: Purge) -> tuple[World, bool]:
        """The guarded statement. It moves the number and deletes the rows, or does nothing."""
        file_fits = purge.file == world.file or "file_guard" in self.without
        if not (world.purged == purge.batch - 1 and file_fits) and "guarded_purge" not in self.without:
            return world, False
        gone = world.rows & same_ids(purge.deletes)
        if gone & ~world.sent:
            raise Harm("a record is lost: deleted before it was committed in Kafka")
        return world._replace(rows=world.rows & ~gone, purged=purge.batch), True

    def owner_steps(self, world: World, owner: Owner) -> Iterator[tuple[str, Owner, World]]:
        if world.crashes and owner != Owner():
            poorer = world._replace(crashes=world.crashes - 1)
            yield "crash", Owner(), poorer
            if owner.job and owner.job[0].status == "send":
                yield "crash, purge on its way", Owner(), self.leave_behind(poorer, owner.job[0])
        if owner.job:
            yield from self.purge_steps(world, owner, owner.job[0])
        yield from getattr(self, owner.phase)(world, owner)

    @staticmethod
    def leave_behind(world: World, purge: Purge) -> World:
        return world._replace(late=tuple(sorted((*world.late, purge))))

    # The purge, beside everything else

    def purge_steps(self, world: World, owner: Owner, job: Purge) -> Iterator[tuple[str, Owner, World]]:
        rest = owner.job[1:]
        done = Owner(job=rest) if owner.phase == "init" else owner._replace(job=rest, acknowledged=job.batch)
        entry = entry_of(Sent(job.batch, job.rows))
        assert entry is not None
        if job.status == "send":
            if world.troubles:
                poorer = world._replace(troubles=world.troubles - 1)
                yield "purge: connection lost", owner, self.leave_behind(poorer, job)
            after, moved = self.execute(world, job)
            yield "purge", done if moved else owner._replace(job=(job._replace(status="judge"), *rest)), after
        elif job.status == "judge":
            answer = v.after_purge(entry, world.purged)
            self.refuse_stop(world, answer)
            if isinstance(answer, v.Purged):
                yield "purge was done", done, world
            elif isinstance(answer, v.LookUpRows):
                yield "purge moved nothing", owner._replace(job=(job._replace(status="compare"), *rest)), world
        else:
            settled = v.settle(entry, self.look_up(world, Sent(job.batch, job.rows)))
            self.refuse_stop(world, settled)
            if not isinstance(settled, v.Stop):
                deletes = job.rows if isinstance(settled, v.PurgeEntry) else 0
                again = Purge("send", job.batch, job.rows, deletes, world.file)
                yield "compared", owner._replace(job=(again, *rest)), world

    def look_up(self, world: World, sent: Sent) -> v.Rows:
        entry = entry_of(sent)
        assert entry is not None
        present = world.rows & same_ids(sent.rows)
        found = v.found_rows(entry, present.bit_count(), present, 0)
        return v.Rows.ALL if found is v.Rows.DIFFERENT and "digest" in self.without else found

    @staticmethod
    def refuse_stop(world: World, answer: object) -> None:
        if isinstance(answer, v.Stop) and not world.file:
            raise Harm(f"stopped although nothing went back in time: {answer.text}")

    # Taking over

    def init(self, world: World, owner: Owner) -> Iterator[tuple[str, Owner, World]]:
        if owner.job:
            return  # finish own purges first
        if "fence_first" in self.without:
            yield "no fence yet", Owner("read_purged"), world
        elif world.epoch < self.epochs:
            fenced = self.fence(world)
            yield "init", Owner("read_purged", fenced.epoch), fenced

    def fence(self, world: World) -> World:
        transaction = tuple(
            open_one._replace(status=ABORTING) if open_one.status == OPEN else open_one
            for open_one in world.transaction
        )
        return world._replace(epoch=world.epoch + 1, transaction=transaction)

    def read_purged(self, world: World, owner: Owner) -> Iterator[tuple[str, Owner, World]]:
        yield "read m", owner._replace(phase="read_ledger", purged=world.purged), world

    def read_ledger(self, world: World, owner: Owner) -> Iterator[tuple[str, Owner, World]]:
        """The last entry below the end of the partition, once everything below that end is settled, whoever wrote
        it."""
        unsettled = world.transaction and world.transaction[0].entry.batch
        if not unsettled or "stable_offset" in self.without:
            yield "read n", owner._replace(phase="read_again", entry=world.ledger), world

    def read_again(self, world: World, owner: Owner) -> Iterator[tuple[str, Owner, World]]:
        again = owner.purged if "second_look" in self.without else world.purged
        answer = judge(owner.purged, owner.entry, again)
        yield from self.obey(world, owner, answer)

    def look(self, world: World, owner: Owner) -> Iterator[tuple[str, Owner, World]]:
        found = self.look_up(world, owner.entry)
        yield from self.obey(world, owner, judge(owner.purged, owner.entry, owner.purged, found))

    def obey(self, world: World, owner: Owner, answer: v.Decision) -> Iterator[tuple[str, Owner, World]]:
        self.refuse_stop(world, answer)
        if isinstance(answer, v.AskElection):
            yield "ask the election", Owner(), world
        elif isinstance(answer, v.LookUpRows):
            yield "rows?", owner._replace(phase="look"), world
        elif isinstance(answer, v.NothingToDo):
            yield "nothing to do", self.settled(owner, answer.batch), world
        elif isinstance(answer, v.PurgeEntry | v.MoveOnly):
            deletes = owner.entry.rows if isinstance(answer, v.PurgeEntry) else 0
            job = Purge("send", owner.entry.batch, owner.entry.rows, deletes, world.file)
            yield type(answer).__name__, Owner("settle", owner.epoch, job=(job,)), world

    def settle(self, world: World, owner: Owner) -> Iterator[tuple[str, Owner, World]]:
        if not owner.job:
            yield "settled", self.settled(owner, owner.acknowledged), world

    def settled(self, owner: Owner, batch: int) -> Owner:
        phase = "ready" if owner.epoch else "fence_late"
        return Owner(phase, owner.epoch, acknowledged=batch, number=batch + 1)

    def fence_late(self, world: World, owner: Owner) -> Iterator[tuple[str, Owner, World]]:
        if world.epoch < self.epochs:
            fenced = self.fence(world)
            yield "init, late", owner._replace(phase="ready", epoch=fenced.epoch), fenced

    # The round

    def ready(self, world: World, owner: Owner) -> Iterator[tuple[str, Owner, World]]:
        in_flight = owner.job[-1].batch if owner.job else None
        answer = v.round_check(0, world.purged, owner.acknowledged, in_flight)
        self.refuse_stop(world, answer)
        if isinstance(answer, v.AskElection):
            yield "m moved: ask the election", Owner(job=owner.job), world
        if not isinstance(answer, v.GoOn):
            return
        flying = 0
        for purge in owner.job if "exclusions" not in self.without else ():
            flying |= same_ids(purge.rows)
        waiting = [1 << bit for bit in range(2 * NEW) if (world.rows & ~flying) >> bit & 1]
        first = "write_entry" if "entry_last" in self.without else "write_rows"
        for size in range(1, min(self.page, len(waiting)) + 1):
            yield f"read {size}", owner._replace(phase=first, rows=sum(waiting[:size]), file=world.file), world

    def write_rows(self, world: World, owner: Owner) -> Iterator[tuple[str, Owner, World]]:
        last = "entry_last" in self.without
        yield from self.produce(
            world, owner, rows=owner.rows, entry=Sent(), opens=not last, then="commit" if last else ""
        )

    def write_entry(self, world: World, owner: Owner) -> Iterator[tuple[str, Owner, World]]:
        first = "entry_last" in self.without
        entry = Sent(owner.number, owner.rows)
        yield from self.produce(world, owner, rows=0, entry=entry, opens=first, then="" if first else "commit")

    def produce(
        self, world: World, owner: Owner, *, rows: int, entry: Sent, opens: bool, then: str
    ) -> Iterator[tuple[str, Owner, World]]:
        then = then or ("write_entry" if rows else "write_rows")
        if owner.epoch != world.epoch:
            yield "fenced", Owner(job=owner.job), world
            return
        if world.transaction and world.transaction[0].status != OPEN:
            return  # "concurrent transactions": the client waits
        if not world.transaction and not opens:
            yield "invalid transaction state", Owner(job=owner.job), world
        old = world.transaction[0] if world.transaction else Transaction(owner.epoch, OPEN, 0, Sent())
        grown = old._replace(rows=old.rows | rows, entry=entry if entry.batch else old.entry)
        yield f"produce {rows or entry}", owner._replace(phase=then), world._replace(transaction=(grown,))

    def commit(self, world: World, owner: Owner) -> Iterator[tuple[str, Owner, World]]:
        if owner.job and "purge_first" not in self.without:
            return  # the previous purge must be confirmed
        if owner.epoch != world.epoch:
            yield "commit: fenced", Owner(job=owner.job), world
            return
        if not world.transaction or world.transaction[0].status != OPEN:
            yield "commit: invalid transaction state", Owner(job=owner.job), world
        after = self.end(world, owner.epoch)
        job = Purge("send", owner.number, owner.rows, owner.rows, owner.file)
        success = Owner("ready", owner.epoch, owner.acknowledged, owner.number + 1, job=(*owner.job, job))
        yield "commit", success, after
        if not world.troubles:
            return
        late = tuple(sorted((*world.frames, owner.epoch)))
        renewed = success if "renewal" in self.without else Owner(job=success.job)
        poorer = after._replace(troubles=world.troubles - 1)
        yield "commit, a copy stays on its way", renewed, poorer._replace(frames=late)
        unsure = Owner(job=owner.job)
        if "ledger_decides" in self.without:
            unsure = owner._replace(phase="ready", rows=0, file=0)
        yield "commit, reply lost", unsure, poorer
        yield "commit timed out, frame on its way", unsure, world._replace(frames=late, troubles=world.troubles - 1)


def explore(model: Model, start: World, states_max: int = 20_000_000) -> list[World]:
    """Visit every reachable world once. A harm is raised again with the path that leads to it."""
    parents: dict[World, tuple[World | None, str]] = {start: (None, "start")}
    stack = [start]
    while stack:
        world = stack.pop()
        try:
            for label, after in model.steps(world):
                if after not in parents:
                    parents[after] = (world, label)
                    stack.append(after)
        except Harm as harm:
            raise Harm(f"{harm}\n" + "\n".join(path(parents, world))) from None
        assert len(parents) <= states_max
    return list(parents)


def path(parents: dict[World, tuple[World | None, str]], world: World | None) -> list[str]:
    lines: list[str] = []
    while world is not None:
        parent, label = parents[world]
        lines.append(f"{label:40} {world}")
        world = parent
    return lines[::-1]


def rescued(world: World) -> World:
    """A fresh owner, alone and undisturbed, works off what an earlier history left behind."""
    calm = world._replace(owners=(Owner(),), crashes=0, troubles=0, truncations=0, frames=(), late=())
    model = Model(epochs=world.epoch + 1)
    for _ in range(200):
        step = next(model.steps(calm), None)
        if step is None:
            return calm
        calm = step[1]
    raise Harm(f"a fresh owner does not come to an end: {calm}")


def start(*, owners: int, rows: int, crashes: int = 1, troubles: int = 1, truncations: int = 0) -> World:
    return World((1 << rows) - 1, (Owner(),) * owners, crashes, troubles, truncations)


def check(model: Model, begin: World, *, sample: int) -> int:
    """Explore, then let a fresh owner finish every `sample`-th world: nothing may be left, missing or out of step."""
    worlds = explore(model, begin)
    assert any(not world.rows for world in worlds), "no history came to its end"
    for world in worlds[::sample]:
        if not world.file:
            end = rescued(world)
            assert end.rows == 0, end
            assert end.sent == begin.rows, end
            assert end.purged == end.ledger.batch, end
    return len(worlds)


def test_two_owners_with_a_crash_and_a_trouble() -> None:
    assert check(Model(epochs=3), start(owners=2, rows=2), sample=50) > 30_000


def test_three_owners_with_a_trouble() -> None:
    assert check(Model(epochs=3), start(owners=3, rows=2, crashes=0), sample=100) > 80_000


def test_batches_of_one_or_two_rows() -> None:
    assert check(Model(epochs=2, page=2), start(owners=2, rows=3, crashes=0), sample=50) > 5_000


def test_ids_drawn_a_second_time_under_live_owners() -> None:
    """New rows under old ids may stop the lane; they are never deleted unsent."""
    assert check(Model(epochs=2), start(owners=2, rows=2, crashes=0, truncations=1), sample=50) > 5_000


TWICE, LOST, STOPPED = "committed twice", "is lost", "stopped although"


@pytest.mark.parametrize(
    ("without", "truncations", "harm"),
    [
        ("fence_first", 0, TWICE),  # m and n read before the producer is initialised
        ("stable_offset", 0, TWICE),  # n read while an older transaction is not settled
        ("second_look", 0, STOPPED),  # m not read again after n
        ("guarded_purge", 0, STOPPED),  # a stale purge sets the number back
        ("file_guard", 1, LOST),  # a purge by id alone after ids were drawn a second time
        ("digest", 1, LOST),  # rows under the entry's ids taken for the entry's rows
        ("exclusions", 0, TWICE),  # rows in flight read again
        ("purge_first", 0, STOPPED),  # the next batch committed before the purge of the previous one is confirmed
        ("renewal", 0, TWICE),  # going on after connection trouble: a late EndTxn commits half of the next batch
        ("renewal entry_last", 0, LOST),  # the same with the ledger entry produced first
        ("ledger_decides", 0, TWICE),  # a commit without an answer taken for an abort
    ],
)
def test_a_rule_left_out_does_harm(without: str, truncations: int, harm: str) -> None:
    with pytest.raises(Harm, match=harm):
        explore(Model(epochs=3, without=without), start(owners=2, rows=2, truncations=truncations))


@pytest.mark.torture
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("epochs", "page", "begin"),
    [
        (4, 1, start(owners=3, rows=2)),
        (4, 1, start(owners=2, rows=3)),
        (4, 2, start(owners=2, rows=3)),
        (3, 1, start(owners=2, rows=2, troubles=2)),
        (3, 1, start(owners=2, rows=2, crashes=2)),
        (3, 1, start(owners=2, rows=2, truncations=1)),
    ],
)
def test_larger_worlds(epochs: int, page: int, begin: World) -> None:
    worlds = check(Model(epochs=epochs, page=page), begin, sample=100)
    assert worlds > 50_000
