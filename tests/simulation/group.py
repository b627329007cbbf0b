"""The simulated coordinator of the group. It obeys; faults are chosen by the scenario."""

from __future__ import annotations

from typing import Any

SESSION_TIMEOUT_S = 6.0
UNKNOWN_MEMBER, OLD_GENERATION = "unknown member", "old generation"


class Group:
    """A coordinator with session time-outs; eager or cooperative."""

    def __init__(self, world: Any, *, cooperative: bool) -> None:
        self.world = world
        self.cooperative = cooperative
        self.members: dict[str, Any] = {}
        self.seen: dict[str, float] = {}
        self.owner: dict[int, str] = {}
        self.partitions = range(world.lanes + 1)  # one more than lanes: it must stay idle
        self.generation = 0
        """Of the assignments."""
        self._ids: dict[str, int] = {}
        """Of the members: one that comes back has another."""
        self._joined = 0
        self._waiting: dict[int, str] = {}
        self._balancing = False
        self._dirty = False

    def join(self, member: Any) -> None:
        self.leave(member.name)  # who comes back owns nothing of what its former self had
        self.members[member.name] = member
        self._joined += 1
        self._ids[member.name] = self._joined
        self.seen[member.name] = self.world.now
        self.balance()

    def leave(self, name: str) -> None:
        """Leaving by itself, or eviction: its partitions are free at once."""
        if self.members.pop(name, None) is None:
            return
        for partition in [p for p, owner in self.owner.items() if owner == name]:
            del self.owner[partition]
            self._waiting.pop(partition, None)
        self.balance()
        self._go_on()

    def metadata(self, name: str) -> tuple[str, int, int]:
        """What a member says of itself in transactions."""
        return name, self._ids[name], self.generation

    def refusal(self, metadata: tuple[str, int, int]) -> str:
        """Empty: there is none."""
        name, id_, generation = metadata
        if name not in self.members or self._ids[name] != id_:
            return UNKNOWN_MEMBER
        return "" if generation == self.generation else OLD_GENERATION

    def is_owner(self, name: str, partition: int) -> bool:
        return name in self.members and self.owner.get(partition) == name

    def others(self, name: str) -> list[str]:
        return [other for other in self.members if other != name]

    def expire(self) -> None:
        for name in list(self.members):
            if self.world.now - self.seen[name] > SESSION_TIMEOUT_S:
                self.leave(name)

    def balance(self) -> None:
        if self._balancing:
            self._dirty = True
            return
        self._balancing, self._dirty = True, False
        self._target = self._assignment()
        for partition, owner in list(self.owner.items()):
            if not self.cooperative or self._target.get(partition) != owner:
                self._waiting[partition] = owner
                self.members[owner].post("revoke", partition)
        self.world.after(0.02, self._go_on)

    def released(self, name: str, partition: int) -> None:
        if self._waiting.get(partition) == name:
            del self._waiting[partition]
            self.owner.pop(partition, None)
            self._go_on()

    def _go_on(self) -> None:
        if not self._balancing or self._waiting:
            return
        self._balancing = False
        if self._dirty:
            self.balance()
            return
        self.generation += 1
        for partition, name in self._target.items():
            if self.owner.get(partition) != name and name in self.members:
                self.owner[partition] = name
                self.members[name].post("assign", partition)

    def _assignment(self) -> dict[int, str]:
        names = list(self.members)
        if not names:
            return {}
        if not self.cooperative:
            self.world.random.shuffle(names)  # member ids are random and range sorts them
            return {p: names[p % len(names)] for p in self.partitions}
        target: dict[int, str] = {}
        share = -(-len(self.partitions) // len(names))
        for p in self.partitions:
            owner = self.owner.get(p)
            if owner in self.members and list(target.values()).count(owner) < share:
                target[p] = owner
        for p in self.partitions:
            if p not in target:
                target[p] = min(names, key=lambda n: list(target.values()).count(n))
        return target
