"""The frontier against a model of PostgreSQL's visibility: every accepted read is the complete prefix, in id order."""

import random
from bisect import insort
from collections.abc import Callable, Iterable

import pytest

from outbox.core.frontier import GENERATIONS_MAX, Frontier, Snapshot, SnapshotError, next_xid, parse_snapshot

WINDOWS = (0, 2, 10, 20_000)


class Database:
    """Transactions, a sequence and what each snapshot shows. A transaction's xid is assigned before it draws an id."""

    def __init__(self) -> None:
        self.next_xid = 100
        self.last_completed = 99
        self.running: dict[int, list[int]] = {}
        self.sequence = 0
        self.visible: list[int] = []

    def begin(self) -> int:
        xid = self.next_xid
        self.next_xid += 1
        self.running[xid] = []
        return xid

    def draw(self, xid: int) -> int:
        self.sequence += 1
        self.running[xid].append(self.sequence)
        return self.sequence

    def end(self, xid: int, commit: bool) -> None:
        ids = self.running.pop(xid)
        self.last_completed = max(self.last_completed, xid)
        if commit:
            for id_ in ids:
                insort(self.visible, id_)

    def savepoint(self, xid: int, release: bool) -> None:
        """A subtransaction takes a later xid of its own, which no snapshot lists; rolled back, its ids are gone."""
        self.next_xid += 1
        id_ = self.draw(xid)
        if not release:
            self.running[xid].remove(id_)

    def snapshot(self) -> tuple[int, tuple[int, ...], list[int]]:
        xmax = self.last_completed + 1
        return xmax, tuple(sorted(xid for xid in self.running if xid < xmax)), list(self.visible)


class History:
    """A random history of writers and one reader; `check` is called with what was read and what had to be read."""

    def __init__(
        self,
        seed: int,
        frontier: Frontier,
        *,
        use_next_xid: bool = True,
        give_back: bool = True,
        topics: int = 1,
    ) -> None:
        self.random = random.Random(seed)
        self.database = Database()
        self.frontier = frontier
        self.use_next_xid = use_next_xid
        self.give_back = give_back
        self.topics = topics
        self.held: dict[int, float] = {}
        """Topics that the server passes over, with the lowest id from which it did so."""
        self.in_flight: list[list[int]] = []
        self.limit = self.random.randint(1, 100)
        self.rereads = 0
        self.incomplete: list[str] = []

    def run(self, steps: int) -> "History":
        for _ in range(steps):
            choice = self.random.random()
            if choice < 0.70:
                self.write()
            elif choice < 0.90:
                self.read()
            elif self.topics > 1 and choice < 0.93:
                self.hold_or_release()
            elif self.in_flight:
                self.finish_batch(self.in_flight.pop(self.random.randrange(len(self.in_flight))))
        return self

    def write(self) -> None:
        database, choice = self.database, self.random.random()
        if choice < 0.25 or not database.running:
            database.begin()
            return
        xid = self.random.choice(list(database.running))
        if choice < 0.65:
            for _ in range(self.random.choice((1, 1, 1, 5, 30))):
                database.draw(xid)
        elif choice < 0.70:
            database.savepoint(xid, release=self.random.random() < 0.5)
        else:
            database.end(xid, commit=self.random.random() < 0.8)

    def finish_batch(self, batch: list[int]) -> None:
        if self.random.random() < 0.3:
            if self.give_back:
                self.frontier.give_back(batch)
        else:
            gone = set(batch)
            self.database.visible = [id_ for id_ in self.database.visible if id_ not in gone]

    def hold_or_release(self) -> None:
        topic = self.random.randrange(self.topics)
        if topic not in self.held:
            self.held[topic] = float("inf")
        elif (lowest := self.held.pop(topic)) < float("inf") and self.give_back:
            self.frontier.give_back([int(lowest)])

    def read(self) -> None:
        look: int | None = self.frontier.start()
        for attempt in range(20):
            assert look is not None
            self.held = {topic: min(lowest, look + 1) for topic, lowest in self.held.items()}
            rows, snapshot, sequence, due = self.select(look)
            lower = self.frontier.missed_from(look, snapshot, sequence)
            if lower is None:
                break
            assert lower < look
            look, self.rereads = lower, self.rereads + 1
            assert attempt < 19, "a read must settle: only the transactions of one accepted read can end"
        if rows != due:
            self.incomplete.append(f"read {rows[:5]} above {look}, due {due[:5]}")
        is_full, last_id = len(rows) == self.limit, rows[-1] if rows else None
        self.frontier.accept(last_id, is_full, snapshot, sequence, passes_over=bool(self.held))
        if rows:
            self.in_flight.append(rows)

    def select(self, look: int) -> tuple[list[int], Snapshot, int, list[int]]:
        """One statement: the snapshot is taken first; sequence and next xid are read while writers go on."""
        xmax, running, visible = self.database.snapshot()
        self.write_between()
        sequence = self.database.sequence
        self.write_between()
        flying = {id_ for batch in self.in_flight for id_ in batch}
        waiting = [id_ for id_ in visible if id_ not in flying and id_ % self.topics not in self.held]
        due = waiting[: self.limit]
        rows = [id_ for id_ in waiting if id_ > look][: self.limit]
        return rows, Snapshot(running, xmax, self.database.next_xid if self.use_next_xid else xmax), sequence, due

    def write_between(self) -> None:
        if self.random.random() < 0.2:
            self.write()


class LateSequence(History):
    """The sequence is read after the next xid: SQL promises no order of evaluation."""

    def select(self, look: int) -> tuple[list[int], Snapshot, int, list[int]]:
        rows, snapshot, _, due = super().select(look)
        for _ in range(3):
            self.write()
        return rows, snapshot, self.database.sequence, due


def histories(seeds: Iterable[int], make: Callable[[int], History], steps: int = 300) -> tuple[int, list[str]]:
    rereads, failures = 0, []
    for seed in seeds:
        history = make(seed).run(steps)
        rereads += history.rereads
        failures += [f"seed {seed}: {history.incomplete[0]}"] if history.incomplete else []
    return rereads, failures


def right(seed: int) -> History:
    return History(seed, Frontier(WINDOWS[seed % 4]))


def test_every_read_is_the_complete_prefix() -> None:
    rereads, failures = histories(range(400), right)
    assert not failures, failures[:3]
    assert rereads > 100, "the histories must make the frontier look back, or they prove nothing"


def with_holds(seed: int) -> History:
    return History(seed, Frontier(WINDOWS[seed % 4]), topics=2 + seed % 3)


def test_every_read_is_the_complete_prefix_of_what_is_not_held() -> None:
    rereads, failures = histories(range(400), with_holds)
    assert not failures, failures[:3]
    assert rereads > 100


def test_a_hold_that_gives_nothing_back_is_caught() -> None:
    class Forgetful(History):
        def hold_or_release(self) -> None:
            self.give_back, before = False, self.give_back
            super().hold_or_release()
            self.give_back = before

    _, failures = histories(range(100), lambda seed: Forgetful(seed, Frontier(WINDOWS[seed % 4]), topics=3))
    assert len(failures) > 80


class PresentSequence(Frontier):
    """Takes this read's sequence value for what was looked at."""

    def accept(
        self, last_id: int | None, page_full: bool, snapshot: Snapshot, sequence: int, *, passes_over: bool = False
    ) -> None:
        super().accept(last_id, page_full, snapshot, sequence, passes_over=passes_over)
        if passes_over and not page_full:
            self._read_to = sequence


def test_the_present_sequence_value_as_looked_at_is_caught() -> None:
    def late(frontier: type[Frontier]) -> Callable[[int], History]:
        return lambda seed: LateSequence(seed, frontier(WINDOWS[seed % 4]), topics=3)

    _, naive = histories(range(200), late(PresentSequence))
    _, failures = histories(range(200), late(Frontier))
    assert naive
    assert not failures, failures[:3]


@pytest.mark.torture
@pytest.mark.timeout(900)
def test_every_read_is_the_complete_prefix_in_20_000_histories() -> None:
    rereads, failures = histories(range(1_000_000, 1_020_000), right)
    assert not failures, failures[:3]
    assert rereads > 50_000


def test_xmax_in_place_of_the_next_xid_is_caught() -> None:
    _, failures = histories(range(200), lambda seed: History(seed, Frontier(WINDOWS[seed % 4]), use_next_xid=False))
    assert len(failures) > 10


def test_a_forgotten_give_back_is_caught() -> None:
    _, failures = histories(range(100), lambda seed: History(seed, Frontier(WINDOWS[seed % 4]), give_back=False))
    assert len(failures) > 80


class Cursor(Frontier):
    """The naive reader: ``id > last``. It never looks back."""

    def start(self) -> int:
        return self.read_to

    def missed_from(self, look: int, snapshot: Snapshot, sequence: int) -> int | None:
        return None


def test_a_cursor_is_caught() -> None:
    _, failures = histories(range(100), lambda seed: History(seed, Cursor()))
    assert len(failures) > 80


class NoPreviousSequence(Frontier):
    """Takes this read's sequence value, which may be younger than its next xid's assignment, for the floor."""

    def accept(
        self, last_id: int | None, page_full: bool, snapshot: Snapshot, sequence: int, *, passes_over: bool = False
    ) -> None:
        self._sequence = sequence
        super().accept(last_id, page_full, snapshot, sequence, passes_over=passes_over)


def test_the_present_sequence_value_as_floor_is_caught() -> None:
    _, naive = histories(range(300), lambda seed: LateSequence(seed, NoPreviousSequence(WINDOWS[seed % 4])))
    _, failures = histories(range(300), lambda seed: LateSequence(seed, Frontier(WINDOWS[seed % 4])))
    assert naive
    assert not failures, failures[:3]


EPOCH = 1 << 32


@pytest.mark.parametrize(
    ("xmax", "distance"),
    [
        (base + offset, distance)
        for base in (1000, 1 << 31, EPOCH, EPOCH + (1 << 31), 7 * EPOCH)
        for offset in (-5, -1, 0, 1)
        for distance in (0, 1, 7, 100_000)
    ],
)
def test_next_xid_across_2_to_31_and_the_epoch(xmax: int, distance: int) -> None:
    expected = xmax + distance
    age = (expected - 3) & 0xFFFFFFFF  # the server subtracts in 32 bits and shows the result as a signed integer
    assert next_xid(xmax, age - EPOCH if age >= 1 << 31 else age) == expected


@pytest.mark.parametrize(
    ("text", "age", "snapshot"),
    [
        ("750:750:", 747, Snapshot((), 750, 750)),
        ("740:750:740,744", 749, Snapshot((740, 744), 750, 752)),
        ("4294967290:4294967300:4294967290", 3, Snapshot((4294967290,), 4294967300, 4294967302)),
    ],
)
def test_snapshot_text(text: str, age: int, snapshot: Snapshot) -> None:
    assert parse_snapshot(text, age) == snapshot


@pytest.mark.parametrize("text", ["", "1:2", "1:2:3:4", "1:x:", "1:2:3,,4", "1:2:a"])
def test_another_snapshot_text_is_refused_with_its_value(text: str) -> None:
    with pytest.raises(SnapshotError, match=r"PostgreSQL returned .* from pg_current_snapshot\(\)"):
        parse_snapshot(text, 5)


def settled(xid: int) -> Snapshot:
    return Snapshot((), xid, xid)


def read(frontier: Frontier, ids: list[int], snapshot: Snapshot, sequence: int, limit: int = 100) -> list[int]:
    """Read the rows `ids` as the edge does and return what it would deliver."""
    look = frontier.start()
    lower = frontier.missed_from(look, snapshot, sequence)
    if lower is not None:
        look = lower
        assert frontier.missed_from(look, snapshot, sequence) is None
    page = [id_ for id_ in sorted(ids) if id_ > look][:limit]
    frontier.accept(page[-1] if page else None, len(page) == limit, snapshot, sequence)
    return page


def test_a_restarted_sequence_is_read_from_the_beginning_at_once() -> None:
    frontier = Frontier()
    assert read(frontier, [900, 1000], settled(50), 1000) == [900, 1000]
    assert read(frontier, [1, 2], settled(60), 2) == [1, 2]
    assert read(frontier, [3], settled(61), 3) == [3]


def test_a_sequence_restarted_between_a_reset_and_the_next_read_leaves_no_high_floor() -> None:
    frontier = Frontier(look_back_ids=0)
    read(frontier, [1000], settled(50), 1000)
    frontier.reset()  # a lane was acquired; meanwhile TRUNCATE ... RESTART IDENTITY
    read(frontier, [2], settled(60), 2)
    read(frontier, [5], Snapshot((60,), 62, 62), 5)  # 60 began after that read and drew 3 and 4
    assert read(frontier, [3, 4], settled(63), 5) == [3, 4]


def test_what_the_server_passes_over_is_walked_twice_at_most() -> None:
    frontier = Frontier()
    for xid in (50, 51):  # the sequence of the read before is what was certainly drawn
        assert frontier.start() == 0
        frontier.accept(None, False, Snapshot((40,), xid, xid), 1_000_000, passes_over=True)
    assert frontier.start() == 1_000_000, "a stranger's transaction, far below, is not looked back to before it ends"
    assert frontier.missed_from(1_000_000, settled(61), 1_000_000) == 0
    frontier.give_back([7])  # the hold ends
    assert frontier.start() <= 6


def test_another_sequence_bounds_nothing() -> None:
    frontier = Frontier()
    frontier.accept(None, False, settled(50), 1_000_000, passes_over=True)
    frontier.reset()
    frontier.accept(None, False, settled(51), 5, passes_over=True)
    assert frontier.read_to == 0


def test_an_id_set_by_hand_above_the_sequence_blinds_nothing() -> None:
    frontier = Frontier()
    assert read(frontier, [1, 2, 10**9], settled(50), 2) == [1, 2, 10**9]
    assert read(frontier, [3, 4], settled(52), 4) == [3, 4]
    assert frontier.read_to == 4


def test_an_id_set_by_hand_below_the_frontier_is_left_to_the_sweep() -> None:
    frontier = Frontier()
    read(frontier, [500], settled(50), 500)
    assert read(frontier, [7], settled(51), 500) == []
    assert frontier.read_to >= 7, "the sweep looks at every id up to here"


def test_the_first_id_of_the_sequence_may_commit_last() -> None:
    frontier = Frontier(look_back_ids=0)
    assert read(frontier, [2, 3], Snapshot((10,), 12, 12), 3) == [2, 3]
    assert read(frontier, [1], settled(13), 3) == [1]


def test_a_late_bulk_is_read_page_by_page() -> None:
    frontier = Frontier(look_back_ids=0)
    bulk = list(range(1, 51))
    read(frontier, [60], Snapshot((10,), 12, 12), 60)
    seen: list[int] = []
    for _ in range(9):
        seen += read(frontier, [id_ for id_ in bulk if id_ not in seen], settled(13), 60, limit=7)
    assert seen == bulk


def test_a_far_unfinished_transaction_is_not_walked_until_it_ends() -> None:
    frontier = Frontier(look_back_ids=20_000)
    read(frontier, [1], Snapshot((10,), 12, 12), 1)
    read(frontier, [600_000], Snapshot((10,), 99, 99), 600_000)
    assert frontier.start() == 600_000
    assert frontier.missed_from(600_000, settled(100), 600_000) == 0


def test_a_nearby_unfinished_transaction_is_looked_back_to_at_once() -> None:
    frontier = Frontier(look_back_ids=20_000)
    read(frontier, [100], settled(10), 100)
    read(frontier, [150], Snapshot((11,), 12, 12), 150)
    assert frontier.start() == 100


def test_generations_stay_bounded_while_a_transaction_stays_open() -> None:
    frontier = Frontier(look_back_ids=0)
    for turn in range(1, 5_000):
        read(frontier, [turn], Snapshot((10,), 10 + turn, 10 + turn), turn)
        assert len(frontier._xids) <= GENERATIONS_MAX
    assert len(frontier._xids) > GENERATIONS_MAX / 4, "thinning keeps most of what it knows"
    read(frontier, [], settled(20_000), 5_000)
    assert len(frontier._xids) <= 2


def test_given_back_ids_are_read_again() -> None:
    frontier = Frontier()
    assert read(frontier, [1, 2, 3], settled(50), 3) == [1, 2, 3]
    frontier.give_back([3, 2])
    assert read(frontier, [2, 3], settled(50), 3) == [2, 3]
    frontier.give_back([])
    assert read(frontier, [], settled(50), 3) == []
