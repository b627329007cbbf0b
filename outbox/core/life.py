"""The life of a daemon: started once, stopped by anybody, ended by its first failure. Pure."""

from __future__ import annotations

from enum import Enum, StrEnum

from outbox.core.region import Region, Transitions


class State(StrEnum):
    CREATED = "created"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"


class LifeEvent(Enum):
    START = "somebody starts it"
    STOP = "somebody stops it, or it has failed"
    ENDED = "its thread has let go of everything"


LIFE: Transitions[State, LifeEvent] = Transitions(
    "daemon",
    State.CREATED,
    {
        (State.CREATED, LifeEvent.START): State.RUNNING,
        (State.STOPPED, LifeEvent.START): State.STOPPED,  # it was stopped before it was started
        (State.CREATED, LifeEvent.STOP): State.STOPPED,
        (State.RUNNING, LifeEvent.STOP): State.STOPPING,
        (State.STOPPING, LifeEvent.STOP): State.STOPPING,
        (State.STOPPED, LifeEvent.STOP): State.STOPPED,
        (State.RUNNING, LifeEvent.ENDED): State.STOPPED,
        (State.STOPPING, LifeEvent.ENDED): State.STOPPED,
        (State.STOPPED, LifeEvent.ENDED): State.STOPPED,
    },
)


class Force(Enum):
    """What becomes of what is in flight when it stops."""

    FINISH = "finish"
    DROP = "drop"


class ForceEvent(Enum):
    ASKED = "somebody has no time left"


FORCE = Transitions("stop of a daemon", Force.FINISH, {(state, ForceEvent.ASKED): Force.DROP for state in Force})


class DaemonLife:
    """Changed under the daemon's lock; any thread reads it."""

    def __init__(self) -> None:
        self._life, self._force = Region(LIFE), Region(FORCE)

    @property
    def state(self) -> State:
        return self._life.state

    @property
    def is_forced(self) -> bool:
        return self._force.state is Force.DROP

    @property
    def may_start(self) -> bool:
        """It was not started yet, or was stopped before."""
        return self._life.expects(LifeEvent.START)

    def on(self, event: LifeEvent) -> bool:
        """Whether the state has changed."""
        before = self._life.state
        return self._life.on(event) is not before

    def force(self) -> None:
        self._force.on(ForceEvent.ASKED)

    def is_late(self, *, has_failed: bool) -> bool:
        """Whether what could not be finished in time is what the daemon has failed for."""
        return self.state is State.STOPPING and not self.is_forced and not has_failed
