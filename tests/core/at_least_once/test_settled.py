"""What a mark may pass over: no clock, no server."""

import random

from outbox.core.at_least_once.settled import Settled
from outbox.core.frontier import Snapshot


class World:
    """Transactions that draw ids after their xids and end in any order, and marks of what is visible."""

    def __init__(self, seed):
        self.chance = random.Random(seed)
        self.xid, self.id, self.ended_max = 10, 0, 9
        self.open, self.rows = {}, {}

    def act(self):
        roll = self.chance.random()
        if roll < 0.3:
            self.open[self.xid] = []
            self.xid += 1
        elif roll < 0.7 and self.open:
            self.id += 1
            self.open[self.chance.choice(list(self.open))].append(self.id)
        elif self.open:
            xid = self.chance.choice(list(self.open))
            self.rows |= dict.fromkeys(self.open.pop(xid), False)
            self.ended_max = max(self.ended_max, xid)

    def snapshot(self):
        xmax = self.ended_max + 1
        return Snapshot(tuple(sorted(xid for xid in self.open if xid < xmax)), xmax, self.xid)

    def mark(self, settled, limit):
        """Every third record is held."""
        seen = sorted(id_ for id_, is_marked in self.rows.items() if not is_marked and id_ % 3 and id_ > settled.look)
        for id_ in seen[:limit]:
            self.rows[id_] = True
        settled.note(self.snapshot(), self.id, seen[:limit][-1] if seen else None)


def test_no_record_is_ever_passed_over_and_held_ones_are():
    furthest = 0
    for seed in range(200):
        world, settled = World(seed), Settled()
        for _ in range(300):
            world.act()
            if world.chance.random() < 0.5:
                world.mark(settled, limit=world.chance.choice([1, 5, 100]))
                missed = [id_ for id_, is_marked in world.rows.items() if not is_marked and id_ % 3]
                missed += [id_ for ids in world.open.values() for id_ in ids]
                assert all(id_ > settled.look for id_ in missed), seed
        furthest = max(furthest, settled.look)
    assert furthest > 10, "it never got anywhere"


def test_a_sequence_that_was_set_back_begins_anew():
    settled, quiet = Settled(), Snapshot((), 50, 50)
    for sequence in (100, 100, 100):
        settled.note(quiet, sequence, None)
    assert settled.look == 100
    settled.note(quiet, 3, None)
    assert settled.look == 0
