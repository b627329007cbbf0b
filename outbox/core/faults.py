"""What an error of the Kafka client means for what is being sent: whose fault it is, and whether waiting helps.

Every error code of the installed client is in the table, under exactly one kind. A test enumerates the client's codes
and fails when a version brings one that nobody has classified; until then it is unforeseen. Here are no pauses
(``patience``) and no search for the poison record of a rejected batch (``holds.bisection``).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class Kind(StrEnum):
    """Whose fault. The first question is always whether waiting helps, because only who is to blame pays an attempt."""

    NONE = "none"
    """No failure: an answer that the client words as an error."""
    OUTAGE = "outage"
    """Not now. The same request may succeed later, unchanged: nobody is to blame, no attempt is spent."""
    UNFORESEEN = "unforeseen"
    """A broker has met something it has no name for, or a newer one has a name that this client has not. Waiting may
    help; a record that is blamed for it might be blamed for a broker's bad hour."""
    RECORD = "record"
    """This record can never be sent as it is. The report names it."""
    BATCH = "batch"
    """One record of a batch cannot be sent, but all of its records are reported with the error. Sent alone, the
    record that gets it again is to blame."""
    BYSTANDER = "bystander"
    """Failed only because another record of the same batch did: to be sent again."""
    TOPIC = "topic"
    """The record's topic is missing, closed to this user, or takes none of this host's clock: every record of the topic
    shares it."""
    DENIED = "denied"
    """Kafka does not accept this client at all: credentials, rights, versions, settings. No record is to blame; an
    operator has to change something, and until then it is like an outage."""
    FENCE = "fence"
    """A newer producer has the transactional id, or the broker has ended an own transaction that took too long.
    Which of both, only the election knows."""
    PRODUCER = "producer"
    """This producer is used up, with what it held. Another one may send the same records; the cause may be a failed
    record that was not told apart."""
    GROUP = "group"
    """The membership in a consumer group is in question: the election's affair."""
    FOREIGN = "foreign"
    """No answer to anything that is asked here. When it comes all the same, the producer is thrown away."""


def _codes(names: str) -> tuple[str, ...]:
    return tuple(names.split())


TABLE: Mapping[Kind, tuple[str, ...]] = {
    Kind.NONE: _codes("NO_ERROR _NOOP _PARTITION_EOF _ASSIGN_PARTITIONS _REVOKE_PARTITIONS"),
    # INVALID_REPLICATION_FACTOR: fewer brokers are up than copies are wanted. _QUEUE_FULL: the client's own memory.
    # *_TOPIC_ID: the topic was made anew, and the client does not know yet.
    Kind.OUTAGE: _codes("""
        _FAIL _TRANSPORT _CRIT_SYS_RESOURCE _RESOLVE _MSG_TIMED_OUT _ALL_BROKERS_DOWN _TIMED_OUT _QUEUE_FULL
        _ISR_INSUFF _NODE_UPDATE _WAIT_COORD _IN_PROGRESS _PREV_IN_PROGRESS _TIMED_OUT_QUEUE _WAIT_CACHE _INTR _RETRY
        _DESTROY _DESTROY_BROKER _UNKNOWN_BROKER _OUTDATED
        LEADER_NOT_AVAILABLE NOT_LEADER_FOR_PARTITION REQUEST_TIMED_OUT BROKER_NOT_AVAILABLE REPLICA_NOT_AVAILABLE
        NETWORK_EXCEPTION COORDINATOR_LOAD_IN_PROGRESS COORDINATOR_NOT_AVAILABLE NOT_COORDINATOR NOT_CONTROLLER
        NOT_ENOUGH_REPLICAS NOT_ENOUGH_REPLICAS_AFTER_APPEND INVALID_REPLICATION_FACTOR CONCURRENT_TRANSACTIONS
        KAFKA_STORAGE_ERROR LOG_DIR_NOT_FOUND REASSIGNMENT_IN_PROGRESS FENCED_LEADER_EPOCH UNKNOWN_LEADER_EPOCH
        OFFSET_NOT_AVAILABLE PREFERRED_LEADER_NOT_AVAILABLE ELIGIBLE_LEADERS_NOT_AVAILABLE UNSTABLE_OFFSET_COMMIT
        THROTTLING_QUOTA_EXCEEDED UNKNOWN_TOPIC_ID INCONSISTENT_TOPIC_ID REBOOTSTRAP_REQUIRED
    """),
    Kind.UNFORESEEN: _codes("UNKNOWN"),
    Kind.RECORD: _codes("_INVALID_ARG _KEY_SERIALIZATION _VALUE_SERIALIZATION"),
    Kind.BATCH: _codes("""
        MSG_SIZE_TOO_LARGE RECORD_LIST_TOO_LARGE INVALID_MSG_SIZE INVALID_MSG INVALID_RECORD
        UNSUPPORTED_FOR_MESSAGE_FORMAT POLICY_VIOLATION _BAD_MSG
    """),
    Kind.BYSTANDER: _codes("_INVALID_DIFFERENT_RECORD OPERATION_NOT_ATTEMPTED"),
    # INVALID_TIMESTAMP: the client stamps every record with this host's clock, and the topic does not allow so much.
    Kind.TOPIC: _codes("""
        UNKNOWN_TOPIC_OR_PART _UNKNOWN_TOPIC _UNKNOWN_PARTITION TOPIC_EXCEPTION TOPIC_AUTHORIZATION_FAILED
        INVALID_TIMESTAMP
    """),
    Kind.DENIED: _codes("""
        _SSL _AUTHENTICATION _UNSUPPORTED_FEATURE _NOT_IMPLEMENTED _NOT_CONFIGURED
        CLUSTER_AUTHORIZATION_FAILED TRANSACTIONAL_ID_AUTHORIZATION_FAILED GROUP_AUTHORIZATION_FAILED
        SASL_AUTHENTICATION_FAILED UNSUPPORTED_SASL_MECHANISM ILLEGAL_SASL_STATE SECURITY_DISABLED
        DELEGATION_TOKEN_AUTH_DISABLED DELEGATION_TOKEN_NOT_FOUND DELEGATION_TOKEN_OWNER_MISMATCH
        DELEGATION_TOKEN_REQUEST_NOT_ALLOWED DELEGATION_TOKEN_AUTHORIZATION_FAILED DELEGATION_TOKEN_EXPIRED
        INVALID_PRINCIPAL_TYPE PRINCIPAL_DESERIALIZATION_FAILURE UNACCEPTABLE_CREDENTIAL
        UNSUPPORTED_VERSION UNSUPPORTED_COMPRESSION_TYPE INVALID_REQUIRED_ACKS INVALID_TRANSACTION_TIMEOUT
        INVALID_SESSION_TIMEOUT INCONSISTENT_GROUP_PROTOCOL INVALID_GROUP_ID GROUP_MAX_SIZE_REACHED
        UNSUPPORTED_ASSIGNOR INVALID_PARTITIONS INVALID_REPLICA_ASSIGNMENT INVALID_CONFIG
    """),
    Kind.FENCE: _codes("_FENCED INVALID_PRODUCER_EPOCH PRODUCER_FENCED"),
    # _PURGE_*: it was told to drop what it held.
    Kind.PRODUCER: _codes("""
        _STATE _FATAL _CONFLICT _INCONSISTENT _GAPLESS_GUARANTEE _PURGE_QUEUE _PURGE_INFLIGHT _UNDERFLOW _PARTIAL
        _BAD_COMPRESSION _UNKNOWN_PROTOCOL INVALID_REQUEST INVALID_TXN_STATE INVALID_PRODUCER_ID_MAPPING
        UNKNOWN_PRODUCER_ID OUT_OF_ORDER_SEQUENCE_NUMBER DUPLICATE_SEQUENCE_NUMBER TRANSACTION_COORDINATOR_FENCED
        TRANSACTION_ABORTABLE
    """),
    Kind.GROUP: _codes("""
        _UNKNOWN_GROUP _EXISTING_SUBSCRIPTION _MAX_POLL_EXCEEDED _ASSIGNMENT_LOST _NO_OFFSET _AUTO_OFFSET_RESET
        _LOG_TRUNCATION OFFSET_OUT_OF_RANGE OFFSET_METADATA_TOO_LARGE INVALID_COMMIT_OFFSET_SIZE
        ILLEGAL_GENERATION UNKNOWN_MEMBER_ID REBALANCE_IN_PROGRESS MEMBER_ID_REQUIRED FENCED_INSTANCE_ID
        FENCED_MEMBER_EPOCH UNRELEASED_INSTANCE_ID STALE_MEMBER_EPOCH GROUP_ID_NOT_FOUND NON_EMPTY_GROUP
        GROUP_SUBSCRIBED_TO_TOPIC
    """),
    Kind.FOREIGN: _codes("""
        _FS _KEY_DESERIALIZATION _VALUE_DESERIALIZATION _READ_ONLY _NOENT _INVALID_TYPE _APPLICATION
        STALE_CTRL_EPOCH TOPIC_ALREADY_EXISTS TOPIC_DELETION_DISABLED FETCH_SESSION_ID_NOT_FOUND
        INVALID_FETCH_SESSION_EPOCH LISTENER_NOT_FOUND STALE_BROKER_EPOCH ELECTION_NOT_NEEDED
        NO_REASSIGNMENT_IN_PROGRESS RESOURCE_NOT_FOUND DUPLICATE_RESOURCE INCONSISTENT_VOTER_SET
        INVALID_UPDATE_VERSION FEATURE_UPDATE_FAILED MISMATCHED_ENDPOINT_TYPE UNSUPPORTED_ENDPOINT_TYPE
        UNKNOWN_CONTROLLER_ID UNKNOWN_SUBSCRIPTION_ID TELEMETRY_TOO_LARGE INVALID_REGISTRATION INVALID_RECORD_STATE
        SHARE_SESSION_NOT_FOUND INVALID_SHARE_SESSION_EPOCH FENCED_STATE_EPOCH INVALID_VOTER_KEY DUPLICATE_VOTER
        VOTER_NOT_FOUND INVALID_REGULAR_EXPRESSION STREAMS_INVALID_TOPOLOGY STREAMS_INVALID_TOPOLOGY_EPOCH
        STREAMS_TOPOLOGY_FENCED SHARE_SESSION_LIMIT_REACHED
    """),
}

KINDS: Mapping[str, Kind] = {name: kind for kind, names in TABLE.items() for name in names}

REJECTIONS = frozenset({Kind.RECORD, Kind.BATCH, Kind.TOPIC})
"""An operator, or the writer, has to do something about the record or its topic: an attempt is spent."""
TOO_LARGE = frozenset({"MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE"})
"""Rejections whose cause is found by the sizes of the records."""


def kind_of(name: str) -> Kind:
    """The kind of an error by the name that the client gives it.

    A code for which the client itself has no name (``ERR_142?``: of a broker newer than the client), or which only a
    newer client knows, is unforeseen.
    """
    return KINDS.get(name, Kind.UNFORESEEN)


def is_rejection(name: str) -> bool:
    return kind_of(name) in REJECTIONS


def may_hide_a_rejection(name: str) -> bool:
    """Whether a transaction that ended with this error may have failed for the sake of one of its records."""
    return kind_of(name) not in {Kind.OUTAGE, Kind.DENIED, Kind.FENCE, Kind.NONE}


# ---- in plain words, for people

_BY_KIND: Mapping[Kind, tuple[str, str]] = {
    Kind.NONE: ("Kafka reports no error", "do nothing"),
    Kind.OUTAGE: (
        "Kafka could not take the record at that moment",
        "do nothing: the harvester tries again until Kafka takes it, and counts no attempt",
    ),
    Kind.UNFORESEEN: (
        "a broker reports an error without a name",
        "wait: the harvester tries again and counts no attempt; if the error stays, read the broker's log",
    ),
    Kind.RECORD: ("Kafka's client cannot send the record as it is", "edit the record, or discard it"),
    Kind.BATCH: ("the broker does not accept the record as it is", "edit the record, or discard it"),
    Kind.BYSTANDER: (
        "the broker rejected another record of the same batch",
        "do nothing: the harvester sends this record again",
    ),
    Kind.TOPIC: (
        "the topic does not accept records from this user",
        "create the topic, or allow the user to write to it; delivery then continues in order",
    ),
    Kind.DENIED: (
        "Kafka does not accept this client",
        "compare credentials and settings in KAFKA, and the user's ACLs, with the brokers; no record is the cause",
    ),
    Kind.FENCE: (
        "another process has taken over, or a transaction took longer than TRANSACTION_TIMEOUT",
        "do nothing, unless it repeats: then search for a second harvester with the same NAME",
    ),
    Kind.PRODUCER: (
        "the Kafka producer failed, and the harvester replaced it",
        "do nothing: the harvester takes the lane over again with a new producer",
    ),
    Kind.GROUP: ("Kafka did not confirm this process as a member of the group", "do nothing, unless it repeats"),
    Kind.FOREIGN: ("Kafka gave an answer that does not fit the request", "report it, with the log around that time"),
}
_BY_NAME: Mapping[str, tuple[str, str]] = {
    "MSG_SIZE_TOO_LARGE": (
        "the record is larger than the topic allows",
        "raise max.message.bytes of the topic (and message.max.bytes in KAFKA), or make the record smaller",
    ),
    "RECORD_LIST_TOO_LARGE": (
        "the record is larger than a segment of the topic",
        "raise segment.bytes of the topic, or make the record smaller",
    ),
    "INVALID_TIMESTAMP": (
        "the topic does not accept the time of this host's clock",
        "set that clock, or raise message.timestamp.after.max.ms of the topic; delivery then continues in order",
    ),
    "INVALID_RECORD": (
        "the broker does not accept the record; a compacted topic accepts no record without a key",
        "give the record a key, or remove compact from the topic's cleanup.policy",
    ),
    "UNSUPPORTED_FOR_MESSAGE_FORMAT": (
        "the topic's old message format cannot hold the record's headers",
        "raise message.format.version of the topic",
    ),
    "UNKNOWN_TOPIC_OR_PART": ("the topic does not exist", "create the topic; delivery then continues in order"),
    "_UNKNOWN_TOPIC": ("the topic does not exist", "create the topic; delivery then continues in order"),
    "_UNKNOWN_PARTITION": ("the topic does not have that partition", "create the topic with enough partitions"),
    "TOPIC_EXCEPTION": ("Kafka does not allow the topic's name", "edit the record's topic, or discard the record"),
    "TOPIC_AUTHORIZATION_FAILED": (
        "the user may not write to the topic",
        "allow the user WRITE and DESCRIBE on the topic; delivery then continues in order",
    ),
    "CLUSTER_AUTHORIZATION_FAILED": (
        "the user may not use an idempotent producer",
        "allow the user IDEMPOTENT_WRITE on the cluster (brokers older than 3.0), or WRITE on a topic",
    ),
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": (
        "the user may not use the transactional id",
        "allow the user WRITE and DESCRIBE on transactional ids that begin with NAME",
    ),
    "NOT_ENOUGH_REPLICAS": (
        "the topic has fewer replicas in sync than min.insync.replicas requires",
        "bring the missing brokers back; nothing is lost meanwhile, and the harvester counts no attempt",
    ),
}


def in_plain_words(name: str) -> tuple[str, str]:
    """What has happened, as a clause, and the next step, as an instruction: for pages and commands, which show them
    beside the client's own words."""
    return _BY_NAME.get(name) or _BY_KIND[kind_of(name)]
