"""Scenarios with one theme each, of the seeds whose last digit is 5: few faults and few records, so that a seed says
much about its theme and takes little time."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from outbox.conf import SKIP
from outbox.core.exactly_once import looks
from tests.simulation.checkers import Violation
from tests.simulation.exactly_once.checkers import DEAD, TOPIC, Written
from tests.simulation.exactly_once.holds import QUARANTINED, REFUSED, WANTED
from tests.simulation.exactly_once.operators import Operators, pause_of
from tests.simulation.exactly_once.process import Process
from tests.simulation.exactly_once.scenario import Faults, Rules, Scenario

OTHER_TOPIC = "invoices"


class Operated(Scenario):
    """Operators pause, resume, retry, skip, discard, edit and put back, while records are refused."""

    faults_s = 5.0
    deeds = "pause_one", "resume_one", "want_one", "want_one", "edit_one", "requeue_one"
    wishes: tuple[str, ...] = ("retry", "skip", "discard")

    def __init__(self, seed: int, rules: Rules) -> None:
        super().__init__(seed, rules)
        world = self.world
        self.keys = [f"k{i}" for i in range(self.random.choice((1, 2, 4)))]
        self.sequences = dict.fromkeys(self.keys, 0)
        if self.random.random() < 0.3:
            world.conf = replace(world.conf, refusal_policy=SKIP, refusal_attempts=self.random.choice((1, 2)))
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
        if found := self.holds_of(REFUSED):
            self.operators.want(self.random.choice(found), self.random.choice(self.wishes))

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
            errands_locked=0.2,
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
    """Operators give refused records up, and want them tried again when their lanes are somebody else's."""

    sizes = ((looks, "PAUSE_S", 0.1),)

    def __init__(self, seed: int, rules: Rules) -> None:
        super().__init__(seed, rules)
        self.keys = self.keys[:2]
        self.wishes = ("skip",)
        self.world.evicted = self.change_their_minds

    def act(self) -> None:
        if self.writing:
            self.want_one()
            self.world.after(self.random.expovariate(10.0), self.act)

    def change_their_minds(self) -> None:
        if self.writing:
            self.wishes = ("retry",)
            self.world.faults.refuse_here, self.world.faults.hold = {}, 0.5

    def strike(self) -> None:
        if self.writing:
            self.weather()
            if len(self.living()) < 2:
                self.spawn()
            self.world.after(self.random.uniform(1.0, 2.0), self.strike)

    def weather(self) -> None:
        self.wishes = ("skip",)
        self.world.faults = Faults(
            evicted=0.5, errands_locked=0.2, held_s=(0.1, 1.0), refuse_here=dict.fromkeys(self.keys)
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
            world.conf = replace(world.conf, refusal_policy=SKIP)
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
        held = [hold for hold in now.holds.values() if hold.reason == QUARANTINED]
        behind = {hold.key for hold in held}
        if all(stored.row[2] in behind for stored in now.rows.values()):
            for hold in held:
                self.operators.want(hold.id, self.random.choice(("skip", "discard")))
        self.world.after(1.0, self.give_up)


DEATHS_MAX = 12
"""More than twice what a search by halves takes among the records of one page."""
SLOTS = 8
THEMES: dict[int, type[Scenario]] = {1: Undecided, 2: Poisoned}
"""By (seed // 10) % SLOTS; the other slots are `Operated`."""


def scenario_of(seed: int, rules: Rules) -> Scenario:
    if seed % 10 != 5:
        return Scenario(seed, rules)
    return THEMES.get(seed // 10 % SLOTS, Operated)(seed, rules)
