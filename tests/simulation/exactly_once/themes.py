"""Scenarios with one theme each, of the seeds whose last digit is 5 and some others: few faults and few records, so
that a seed says much about its theme and takes little time."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from outbox.conf import SKIP
from outbox.core.exactly_once import looks, sweeping
from outbox.core.exactly_once.decisions import StateRow
from outbox.edges.postgres.common.leases import settled_after
from tests.simulation.checkers import Violation
from tests.simulation.exactly_once.checkers import DEAD, TOPIC, Written
from tests.simulation.exactly_once.holds import OF_RECORDS, POISON, WANTED
from tests.simulation.exactly_once.operators import Operators, pause_of
from tests.simulation.exactly_once.process import Process
from tests.simulation.exactly_once.scenario import DRAIN_S, Faults, Outcome, Rules, Scenario
from tests.support.settings import changed

OTHER_TOPIC = "invoices"


class Operated(Scenario):
    """Operators pause, resume, retry, skip, discard, edit and put back, while records are refused."""

    faults_s = 5.0
    deeds = "pause_one", "resume_one", "want_one", "want_one", "edit_one", "requeue_one"
    requests: tuple[str, ...] = ("retry", "skip", "discard")

    def __init__(self, seed: int, rules: Rules) -> None:
        super().__init__(seed, rules)
        world = self.world
        self.keys = [f"k{i}" for i in range(self.random.choice((1, 2, 4)))]
        self.sequences = dict.fromkeys(self.keys, 0)
        if self.random.random() < 0.3:
            world.conf = changed(world.conf, REJECTION_POLICY=SKIP, REJECTION_ATTEMPTS=self.random.choice((1, 2)))
        self.operators = Operators(world, self.rewritten)

    def run(self) -> Any:
        self.act()
        return super().run()

    def topic_of(self, key: str) -> str:
        return TOPIC if not key or self.keys.index(key) % 2 == 0 else OTHER_TOPIC

    def rewritten(self, uid: int, id_: int = 0) -> Written | None:
        """Under a new number; with an id, behind all other records of its key."""
        before = self.checkers.written[uid]
        if id_ and before.key in self.locked:
            return None
        self.uid += 1
        if not id_:
            return replace(before, uid=self.uid)
        sequence = self.sequences.get(before.key, 0)
        if before.key:
            self.sequences[before.key] = sequence + 1
        return replace(before, uid=self.uid, id=id_, sequence=sequence)

    # ---- operators

    def act(self) -> None:
        if self.writing:
            getattr(self, self.random.choice(self.deeds))()
            self.world.after(self.random.expovariate(5.0), self.act)

    def pause_one(self) -> None:
        lane = self.random.randrange(self.world.postgres.primary.now.state.lane_count)
        key = self.random.choice(self.keys)
        topic = self.topic_of(key)
        what = (pause_of(topic, key), pause_of(topic, key), pause_of(topic), pause_of(lane=lane))
        self.operators.pause(self.random.choice(what))

    def resume_one(self) -> None:
        if found := self.holds_of(WANTED):
            self.operators.resume(self.random.choice(found))

    def want_one(self) -> None:
        if found := self.holds_of(OF_RECORDS):
            self.operators.want(self.random.choice(found), self.random.choice(self.requests))

    def edit_one(self) -> None:
        if rows := self.world.postgres.primary.now.rows:
            self.operators.edit(self.random.choice(list(rows)))

    def requeue_one(self) -> None:
        if dead := self.world.postgres.primary.now.dead:
            self.operators.requeue(self.random.choice(list(dead)))

    def holds_of(self, reasons: tuple[str, ...]) -> list[int]:
        return [hold.id for hold in self.world.postgres.primary.now.holds.values() if hold.reason in reasons]

    # ---- faults

    def weather(self) -> None:
        def some(probability: float) -> float:
            return probability if self.random.random() < 0.2 else 0.0

        refused = dict.fromkeys(key for key in self.keys if self.random.random() < 0.5)
        by_brokers = self.random.random() < 0.2
        self.world.faults = Faults(
            cut_end=some(0.3),
            hold=0.1,
            held_s=(0.1, 1.0),
            statement_error=some(0.06),
            statement_slow=some(0.1),
            answer_lost=some(0.06),
            answer_late=some(0.1),
            page_late=some(0.1),
            point=some(0.01),
            actions_locked=0.2,
            refuse=refused if by_brokers else {},
            refuse_here={} if by_brokers else refused,
        )

    def strike(self) -> None:
        if not self.writing:
            return
        self.weather()
        getattr(self, self.random.choice(("crash", "pause", "cut", "stop", "join", "ignorant", "stranger", "resize")))()
        if not self.living():
            self.spawn()
        self.world.after(self.random.uniform(0.2, 1.5), self.strike)

    def settle(self) -> None:
        super().settle()
        self.operators.resume_all()
        self.world.after(4.0, self.operators.resume_all)  # an edit that has waited until then

    def check_end(self) -> None:
        super().check_end()
        now = self.world.postgres.primary.now
        dead = {letter.stored.uid for letter in now.dead.values()}
        if lost := dead & self.checkers.delivered.keys():
            raise Violation(f"{lost} are among the dead letters, and in Kafka")
        if wrong := dead - {uid for uid, how in self.checkers.left.items() if how == DEAD}:
            raise Violation(f"{wrong} are dead letters that no purge has made")


class Undecided(Operated):
    """Operators give rejected records up, and retry them when their lanes belong to another process."""

    sizes = ((looks, "PAUSE_S", 0.1),)

    def __init__(self, seed: int, rules: Rules) -> None:
        super().__init__(seed, rules)
        self.keys = self.keys[:2]
        self.requests = ("skip",)
        self.world.evicted = self.change_their_minds

    def act(self) -> None:
        if self.writing:
            self.want_one()
            self.world.after(self.random.expovariate(10.0), self.act)

    def change_their_minds(self) -> None:
        if self.writing:
            self.requests = ("retry",)
            self.world.faults.refuse_here, self.world.faults.hold = {}, 0.5

    def strike(self) -> None:
        if self.writing:
            self.weather()
            if len(self.living()) < 2:
                self.spawn()
            self.world.after(self.random.uniform(1.0, 2.0), self.strike)

    def weather(self) -> None:
        self.requests = ("skip",)
        self.world.faults = Faults(
            evicted=0.5, actions_locked=0.2, held_s=(0.1, 1.0), refuse_here=dict.fromkeys(self.keys)
        )


class Poisoned(Scenario):
    """A record or two end every process that sends them, and nothing else does."""

    faults_s = 4.0

    def __init__(self, seed: int, rules: Rules) -> None:
        super().__init__(seed, rules)
        world = self.world
        self.keys = [f"k{i}" for i in range(self.random.choice((3, 6)))]
        self.sequences = dict.fromkeys(self.keys, 0)
        if self.random.random() < 0.3:
            world.conf = changed(world.conf, REJECTION_POLICY=SKIP)
        world.watches, world.poisoned = True, self.perish
        world.poison = set(self.random.sample(range(1, 30), self.random.choice((1, 1, 2))))
        self.deaths = Counter[int]()
        self.operators = Operators(world, lambda uid: None)

    def perish(self, process: Process, uid: int) -> None:
        self.deaths[uid] += 1
        if self.deaths[uid] > DEATHS_MAX:
            raise Violation(f"{self.checkers.written[uid]} has ended {DEATHS_MAX} processes and is not held")
        process.crash()
        self.world.group.leave(process.name)  # its session would last too long for as many
        self.world.after(self.random.uniform(0.02, 0.2), self.spawn)

    def weather(self) -> None:
        self.world.faults = Faults(hold=0.05, held_s=(0.05, 0.3), answer_late=0.05)

    def strike(self) -> None:
        if self.writing:
            self.weather()
            getattr(self, self.random.choice(("pause", "join", "stranger")))()
            self.world.after(self.random.uniform(0.3, 1.5), self.strike)

    def settle(self) -> None:
        super().settle()
        self.world.after(4.0, self.give_up)

    def give_up(self) -> None:
        """The operator does, once everything else is sent."""
        now = self.world.postgres.primary.now
        held = [hold for hold in now.holds.values() if hold.reason == POISON]
        behind = {hold.key for hold in held}
        if all(stored.row[2] in behind for stored in now.rows.values()):
            for hold in held:
                self.operators.want(hold.id, self.random.choice(("skip", "discard")))
        self.world.after(1.0, self.give_up)


class Kept(Scenario):
    """A topic, a lane or a key is paused until everything else has been quiet for long: meanwhile no read comes by
    what is held again and again."""

    faults_s = 4.0

    def __init__(self, seed: int, rules: Rules) -> None:
        super().__init__(seed, rules)
        self.operators = Operators(self.world, lambda uid: None)
        self.keys = ["k0", "k1", "k2"]
        self.sequences = dict.fromkeys(self.keys, 0)

    def topic_of(self, key: str) -> str:
        return OTHER_TOPIC if key == "k1" else TOPIC

    def run(self) -> Any:
        self.world.after(self.random.uniform(0.0, 2.0), self.pause_some)
        return super().run()

    def pause_some(self) -> None:
        lane = self.random.randrange(self.world.postgres.primary.now.state.lane_count)
        self.operators.pause(self.random.choice((pause_of(OTHER_TOPIC), pause_of(OTHER_TOPIC), pause_of(lane=lane))))

    def weather(self) -> None:
        self.world.faults = Faults(hold=0.05, held_s=(0.05, 0.5), statement_slow=0.02, answer_lost=0.02)

    def strike(self) -> None:
        if self.writing:
            self.weather()
            getattr(self, self.random.choice(("pause", "cut", "join", "stop", "stranger")))()
            if not self.living():
                self.spawn()
            self.world.after(self.random.uniform(0.3, 1.5), self.strike)

    def settle(self) -> None:
        super().settle()
        self.world.after(QUIET_AFTER_S, self.watch)

    def watch(self) -> None:
        self.world.postgres.primary.walked = Counter()
        self.world.after(QUIET_S, self.resume)

    def resume(self) -> None:
        walked = self.world.postgres.primary.walked
        assert walked is not None
        for uid, times in walked.items():
            if times > WALKS_MAX:
                raise Violation(
                    f"{times} reads have come by {self.checkers.written[uid]} in {QUIET_S} s, which is held"
                )
        self.operators.resume_all()


QUIET_AFTER_S, QUIET_S, WALKS_MAX = 9.0, 4.0, 4
"""By then every lane has its owner, and what other processes had in flight is settled."""


class Unruly(Kept):
    """Writers without key that draw an id before they have a transaction."""

    sizes = (
        (sweeping, "_PAUSE_S", 0.05),
        (sweeping, "_SLICE_S", 0.05),
        (sweeping, "_BLOCKS_FIRST", 2),
        (sweeping, "_BLOCKS_MIN", 1),
    )

    def __init__(self, seed: int, rules: Rules) -> None:
        super().__init__(seed, rules)
        self.world.conf = changed(self.world.conf, SWEEP_INTERVAL=0.2)
        self.late = 0

    def pause_some(self) -> None:
        self.operators.pause(pause_of(self.topic_of("k0"), "k0"))

    def begin(self, key: str) -> None:
        if key:
            super().begin(key)
            return
        server = self.world.postgres.primary
        self.uid += 1
        self.late += 1
        record = Written(self.uid, "", 0, server.draw_id())

        def end() -> None:
            self.late -= 1
            server.end(server.begin(), [record])

        self.world.after(self.random.uniform(0.05, 1.0), end)

    def drained(self) -> bool:
        return not self.late and super().drained()


class Quiet(Scenario):
    """A record now and then, while the harvesters sleep for long: a notification wakes them, and where it is lost they
    look by themselves."""

    faults_s = 50.0

    def __init__(self, seed: int, rules: Rules) -> None:
        super().__init__(seed, rules)
        self.world.conf = changed(self.world.conf, NOTIFY=True, MARK_BACKOFF=POLL_S)

    def write(self) -> None:
        self.world.after(self.random.uniform(9.0, 12.0), self.write_one)

    def write_one(self) -> None:
        if not self.writing:
            return
        server, key = self.world.postgres.primary, self.random.choice(self.keys)
        is_lost = self.random.random() < 0.3
        self.world.faults.notification_lost = float(is_lost)
        self.uid += 1
        record = Written(self.uid, key, self.uid, server.draw_id())
        server.end(server.begin(), [record])
        self.world.after(SOON_S + (1.2 * POLL_S if is_lost else 0.0), lambda: self.require_delivered(record))
        self.write()

    def require_delivered(self, record: Written) -> None:
        if record.uid not in self.checkers.delivered:
            raise Violation(f"{record} waits, although nothing else is to be done")

    def strike(self) -> None:
        pass


POLL_S, SOON_S = 4.0, 1.2


class Leased(Scenario):
    """The connection that repeats the lease is broken for so long that another mode may take the table."""

    faults_s = 40.0

    def __init__(self, seed: int, rules: Rules) -> None:
        super().__init__(seed, rules)
        self.quiet_from, self.is_mended = self.world.now + 2.0, False

    def run(self) -> Outcome:
        self.world.after(3.0, self.break_connection)
        self.world.after(3.0 + self.random.choice((5.0, 30.0, 30.0)), self.mend)
        self.watch()
        return super().run()

    def write(self) -> None:
        """No statement runs when the connection breaks."""
        world = self.world
        if not self.writing:
            return
        if world.now < self.quiet_from or world.has_other_mode or self.is_mended:
            key = self.random.choice(self.keys)
            if key not in self.locked:
                self.begin(key)
        world.after(self.random.expovariate(5.0), self.write)

    def strike(self) -> None:
        pass

    def break_connection(self) -> None:
        self.world.faults.broken = "purge"

    def mend(self) -> None:
        self.world.faults.broken, self.is_mended = "", True

    def watch(self) -> None:
        """The other mode takes the table as soon as it may, and keeps it until the connection is mended."""
        world, conf = self.world, self.world.conf
        old_s = conf.election.session_timeout_s + settled_after(conf.exactly_once.transaction_timeout_s)
        if self.is_mended:
            world.has_other_mode = False
        elif world.leased_at and world.now > world.leased_at + old_s:
            world.has_other_mode = True
            for process in world.processes:
                process.holds_lease = False
        if not self.living() and not world.has_other_mode:
            self.spawn()
        world.after(0.3, self.watch)


class Slow(Scenario):
    """The brokers take so long for each request that only small pages are acknowledged in time; later they do not."""

    faults_s = 3.0

    def __init__(self, seed: int, rules: Rules) -> None:
        super().__init__(seed, rules)
        self.world.conf = changed(self.world.conf, BATCH_MAX=40)
        self.world.faults.slow_s = self.random.uniform(0.25, 0.45)
        self.keys = [f"k{i}" for i in range(8)]
        self.sequences = dict.fromkeys(self.keys, 0)
        self.further = 40
        """More than the batches in which pages of one record grow to the largest size."""

    def run(self) -> Outcome:
        world, outcome = self.world, super().run()
        world.faults, world.limits = Faults(), {}
        self.write_on()
        world.run_until(world.now + DRAIN_S, lambda: not self.further and self.drained())
        self.check_end()
        if any(limit < world.conf.exactly_once.batch_max for limit in world.limits.values()):
            raise Violation(f"pages of so many records have not grown again: {world.limits}")
        return outcome

    def write(self) -> None:
        if self.writing:
            self.write_of([self.random.choice(self.keys)])
            self.world.after(self.random.expovariate(40.0), self.write)

    def write_on(self) -> None:
        """One batch after the other, in every lane: how many processes share the lanes makes no difference."""
        self.further -= 1
        self.write_of(self.keys)
        if self.further:
            self.world.after(0.3, self.write_on)

    def write_of(self, keys: list[str]) -> None:
        for key in keys:
            if key not in self.locked:
                self.begin(key)

    def strike(self) -> None:
        pass

    def settle(self) -> None:
        slow_s = self.world.faults.slow_s
        super().settle()
        self.world.faults.slow_s = slow_s


class Hopeless(Scenario):
    """Hundreds of records are refused, and as many wait behind them. All are passed over, and none of them costs a
    producer of its own."""

    faults_s = 16.0

    def __init__(self, seed: int, rules: Rules) -> None:
        super().__init__(seed, rules)
        world = self.world
        world.conf = changed(
            world.conf,
            BATCH_MAX=self.random.choice((30, 200)),
            PRODUCER={"compression.type": "none"},  # records weigh what they are long
        )
        if self.random.random() < 0.5:
            world.conf = changed(world.conf, REJECTION_POLICY=SKIP)
        self.keys = [f"k{i}" for i in range(8)]
        self.hopeless = [f"bad{i}" for i in range(HOPELESS)]
        self.sequences = dict.fromkeys([*self.keys, *self.hopeless], 0)
        self.refused_for = ("the client", "their size", "their names", "their names")[seed // (10 * SLOTS) % 4]
        self.tells_limit = self.random.random() < 0.7
        self.heads: list[int] = []
        self.waiting: list[int] = []
        self.strikes = 0
        world.kafka.markers_slow = 0.0
        self.operators = Operators(world, lambda uid: None)

    def run(self) -> Outcome:
        """Rejected records are in front of all others, and as many of the same keys behind them."""
        for begin in range(0, 2 * HOPELESS, 50):
            self.write_all([self.hopeless[i % HOPELESS] for i in range(begin, begin + 50)])
        self.heads = sorted(self.world.postgres.primary.now.rows)[:HOPELESS]
        self.weather()
        self.world.after(self.faults_s - PATIENCE_S, self.note_waiting)
        return super().run()

    def write_all(self, keys: list[str]) -> None:
        server, records = self.world.postgres.primary, []
        xid = server.begin()
        for key in keys:
            sequence = self.sequences[key]
            self.sequences[key] += 1
            is_head = not sequence
            self.uid += 1 + (self.uid % 2 == int(is_head))  # odd ones are those that may be refused
            is_large = is_head and self.refused_for == "their size"
            size = self.random.choice((LIMIT, 3 * LIMIT // 2, 2 * LIMIT)) - len(key) if is_large else 0
            records.append(Written(self.uid, key, sequence, server.draw_id(), size=size))
        server.end(xid, records)

    def weather(self) -> None:
        faults = self.world.faults = Faults(hold=0.02, held_s=(0.05, 0.3))
        if self.refused_for == "their size":
            faults.limit, faults.tells_limit = LIMIT, self.tells_limit
        elif self.refused_for == "their names":
            faults.refuse, faults.names_refused = dict.fromkeys(self.hopeless), True
        else:
            faults.refuse_here = dict.fromkeys(self.hopeless)

    def strike(self) -> None:
        if self.strikes < STRIKES_MAX:
            self.strikes += 1
            getattr(self, self.random.choice(("crash", "stop", "join", "stranger", "cut")))()
            if not self.living():
                self.spawn()
            self.world.after(self.random.uniform(0.2, 1.0), self.strike)

    def crash(self) -> None:
        for process in self.living()[:1]:
            process.crash()
            self.world.group.leave(process.name)  # its session would last too long
            self.world.after(self.random.uniform(0.05, 0.5), self.spawn)

    def note_waiting(self) -> None:
        rows = self.world.postgres.primary.now.rows.values()
        self.waiting = [stored.uid for stored in rows if stored.row[2] not in self.hopeless]

    def settle(self) -> None:
        """What was refused is taken now; of most of it the operators have had enough."""
        server, made = self.world.postgres.primary, self.world.kafka.initialised
        if made > PRODUCERS_MAX:
            raise Violation(f"{made} producers were made for the sake of {HOPELESS} records")
        if late := [uid for uid in self.waiting if uid not in self.checkers.delivered]:
            raise Violation(f"{len(late)} records have waited for {PATIENCE_S} s, and nothing of their keys is refused")
        held = {hold.record_id for hold in server.now.holds.values()}
        if loose := [id_ for id_ in self.heads if id_ in server.now.rows and id_ not in held]:
            raise Violation(f"{len(loose)} records that are refused are not held")
        super().settle()
        for hold in list(server.now.holds.values())[5:]:
            self.operators.want(hold.id, self.random.choice(("skip", "discard")))


HOPELESS, LIMIT, STRIKES_MAX, PRODUCERS_MAX, PATIENCE_S = 400, 1000, 3, 80, 4.0
"""Each takeover, and with one lane there is one every two seconds, reads all that is held once more."""


class InTurn(Scenario):
    """The lanes of one process have much to send at once, and some of their transactions fail meanwhile."""

    faults_s = 4.0

    def __init__(self, seed: int, rules: Rules) -> None:
        super().__init__(seed, rules)
        world = self.world
        world.lanes, world.switching, world.turns = 3, 0.0, Turns(world)
        world.group.partitions = range(world.lanes)
        world.postgres.primary.now.state = StateRow(world.lanes)
        world.conf = changed(world.conf, BATCH_MAX=60)
        self.keys = [f"k{i}" for i in range(12)]
        self.sequences = dict.fromkeys(self.keys, 0)

    def spawn(self) -> None:
        """One: who has to give a lane back does not wait for the turn."""
        if not self.living():
            super().spawn()

    def write(self) -> None:
        if self.writing:
            for key in self.random.sample(self.keys, 4):
                if key not in self.locked:
                    self.begin(key)
            self.world.after(self.random.expovariate(15.0), self.write)

    def weather(self) -> None:
        refused = {self.random.choice(self.keys): None}
        self.world.faults = Faults(
            produce_slow=1.0,
            cut_end=0.05,
            refuse=refused if self.random.random() < 0.3 else {},
            refuse_here=refused if self.random.random() < 0.3 else {},
            full=(self.random.randrange(self.world.lanes),) if self.random.random() < 0.3 else (),
        )

    def strike(self) -> None:
        if self.writing:
            self.weather()
            self.world.after(self.random.uniform(0.2, 1.0), self.strike)


class Turns:
    """Lanes of a process hand records over one after the other. None waits for long, as the one before it may not get
    on; nor at all while no other hands anything over."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self._begun: dict[Any, float] = {}
        """When each client has begun its transaction."""
        self._waited: dict[Any, float] = {}
        """How long it had waited then when it took the first record."""
        self._waiting: set[Any] = set()
        """Those that were not asked to take one yet."""
        self._taken: dict[Any, list[Any]] = {}
        """The clients of a process that have taken records of their transactions, the last one at the end."""
        self._busy_at: dict[Any, float] = {}
        """When a client of a process was asked last, or has taken a record."""

    def begun(self, process: Any, client: Any) -> None:
        self._begun[client] = self._world.now
        self._waiting.add(client)
        if client in (taken := self._taken.setdefault(process, [])):
            taken.remove(client)

    def asked(self, process: Any, client: Any) -> None:
        now = self._world.now
        if client in self._waiting:
            self._waiting.remove(client)
            waited_s = now - self._begun[client]
            if waited_s > TURN_S + TURN_LATE_S:
                raise Violation(f"a lane of {process.name} has waited for its turn for {waited_s:.3f} s")
            idle_s = min(waited_s, now - self._busy_at.get(process, 0.0))
            if idle_s > TURN_LATE_S:
                raise Violation(f"a lane of {process.name} waits, and for {idle_s:.3f} s none hands records over")
        self._busy_at[process] = now

    def taken(self, process: Any, client: Any) -> None:
        taken = self._taken[process]
        self._busy_at[process] = now = self._world.now
        if client in taken:
            between = taken[taken.index(client) + 1 :]
            taken.remove(client)
            if any(max(self._waited[client], self._waited[other]) < TURN_S for other in between):
                raise Violation(f"lanes of {process.name} hand records over at once")
        else:
            self._waited[client] = now - self._begun[client]
        taken.append(client)


TURN_S, TURN_LATE_S = 0.25, 0.1

DEATHS_MAX = 12
"""More than twice what a search by halves takes among the records of one page."""
SLOTS = 8
THEMES: dict[int, dict[int, type[Scenario]]] = {
    5: {0: Operated, 1: Undecided, 2: Poisoned, 3: Kept, 4: Unruly, 5: Quiet, 6: Leased, 7: Slow},
    0: {6: InTurn, 7: Hopeless},
}
"""By the last digit and (seed // 10) % SLOTS."""


def scenario_of(seed: int, rules: Rules) -> Scenario:
    return THEMES.get(seed % 10, {}).get(seed // 10 % SLOTS, Scenario)(seed, rules)
