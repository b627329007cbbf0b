"""What can go wrong between a member and the brokers, told apart by whether waiting helps."""

from typing import Any

from outbox.exceptions import OutboxError


class KafkaUnreachable(OutboxError):
    """No broker answers (in time): worth another attempt."""


class ElectionRefused(OutboxError):
    """The brokers or the topic do not allow what the election needs: an operator must change something."""


# What librdkafka or a broker says while it cannot serve, as opposed to will not.
_OUTAGES = (
    "_TRANSPORT",
    "_ALL_BROKERS_DOWN",
    "_TIMED_OUT",
    "_TIMED_OUT_QUEUE",
    "_RESOLVE",
    "_WAIT_COORD",
    "_DESTROY",
    "REQUEST_TIMED_OUT",
    "LEADER_NOT_AVAILABLE",
    "NOT_LEADER_FOR_PARTITION",
    "BROKER_NOT_AVAILABLE",
    "REPLICA_NOT_AVAILABLE",
    "NETWORK_EXCEPTION",
    "NOT_CONTROLLER",
    "COORDINATOR_LOAD_IN_PROGRESS",
    "COORDINATOR_NOT_AVAILABLE",
    "NOT_COORDINATOR",
    "THROTTLING_QUOTA_EXCEEDED",
    "INVALID_REPLICATION_FACTOR",  # fewer brokers are up than copies are wanted
)


def is_outage(error: Any) -> bool:
    """Whether a KafkaError may go away by itself."""
    return error.retriable() or error.name() in _OUTAGES or error.name().strip("_") in {o.strip("_") for o in _OUTAGES}
