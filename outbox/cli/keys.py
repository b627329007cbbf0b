"""Every key of the YAML file: the goharvest-compatible ones with their rules, and ours. Tables only.

One row has four names together: the key, the Django setting, the environment variable (``OUTBOX_`` + setting) and the
flag (``--`` + setting in lower case). ``reaper`` reads a file, ``configuration`` merges it with the other sources.
"""

from dataclasses import dataclass
from typing import Any

from outbox.conf import AT_LEAST_ONCE, SPECS

MS = 0.001


@dataclass(frozen=True, kw_only=True)
class SettingKey:
    """One key below ``harvest:``. `default` is a value, or a function of the values before it."""

    path: str
    kind: str  # text, duration, count, flag, properties
    setting: str = ""  # empty: read and checked, but without effect
    default: Any = None  # None: that of the setting
    shown: str = ""  # how the documents show a default that is computed
    least: float | None = None
    required: bool = False  # zero counts as blank
    floor: float | None = (
        None  # the least value that the setting takes, where the goharvest-compatible key may be smaller
    )
    meaning: str = ""

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]


def _half_of_heartbeat(values: dict[str, Any]) -> float:
    return float(values["limits.heartbeatTimeout"]) / 2


def _shorter_wait(values: dict[str, Any]) -> float:
    return float(min(values["limits.maxPollInterval"], values["limits.queueTimeout"]))


_UNUSED = "The program reads and checks it; it has no effect, because the election has its own thread."

GOHARVEST = (
    SettingKey(
        path="baseKafkaConfig",
        kind="properties",
        setting="KAFKA",
        default={},
        shown="bootstrap.servers: localhost:9092",
        meaning="Properties of every Kafka client.",
    ),
    SettingKey(
        path="producerKafkaConfig",
        kind="properties",
        setting="PRODUCER",
        default={},
        shown="{}",
        meaning="Properties of the producers. They win over those of baseKafkaConfig.",
    ),
    SettingKey(
        path="leaderGroupID", kind="text", setting="NAME", default="reaper", meaning="The group of the election."
    ),
    SettingKey(
        path="leaderTopic",
        kind="text",
        setting="LEADER_TOPIC",
        default=lambda values: f"{values['leaderGroupID']}.neli",
        shown="leaderGroupID + .neli",
        meaning="The topic of the election. The harvester creates it if it is absent.",
    ),
    SettingKey(
        path="dataSource",
        kind="text",
        default="host=localhost port=5432 user=postgres password= dbname=postgres sslmode=disable",
        meaning="The address of the database.",
    ),
    SettingKey(
        path="outboxTable",
        kind="text",
        setting="TABLE",
        default="outbox",
        meaning="The table, or schema.table. As in SQL, upper case needs double quotes.",
    ),
    SettingKey(
        path="name",
        kind="text",
        default=None,
        shown="{host}_{process id}_{seconds}",
        meaning="The name of this process in its heartbeats and logs.",
    ),
    SettingKey(
        path="limits.ioErrorBackoff",
        kind="duration",
        setting="IO_BACKOFF",
        default=0.5,
        least=0,
        floor=MS,
        meaning="Pause after a failed statement.",
    ),
    SettingKey(path="limits.pollDuration", kind="duration", default=MS, least=MS, required=True, meaning=_UNUSED),
    SettingKey(path="limits.minPollInterval", kind="duration", default=0.1, least=MS, required=True, meaning=_UNUSED),
    SettingKey(
        path="limits.heartbeatTimeout",
        kind="duration",
        setting="HEARTBEAT_TIMEOUT",
        default=5.0,
        least=MS,
        required=True,
        meaning="A leader is fenced if it has not read back its heartbeat for this long.",
    ),
    SettingKey(
        path="limits.maxPollInterval",
        kind="duration",
        default=_half_of_heartbeat,
        shown="heartbeatTimeout / 2",
        least=MS,
        required=True,
        meaning="The program reads and checks it; only the default of drainInterval depends on it.",
    ),
    SettingKey(
        path="limits.queueTimeout",
        kind="duration",
        setting="QUEUE_TIMEOUT",
        default=30.0,
        least=MS,
        required=True,
        meaning="The harvester logs a key that waits longer for its turn.",
    ),
    SettingKey(
        path="limits.drainInterval",
        kind="duration",
        setting="DRAIN_TIMEOUT",
        default=_shorter_wait,
        shown="the lesser of maxPollInterval and queueTimeout",
        least=MS,
        required=True,
        meaning="How long records in flight may take before the harvester marks all of them again.",
    ),
    SettingKey(
        path="limits.markBackoff",
        kind="duration",
        setting="MARK_BACKOFF",
        least=0,
        floor=MS,
        meaning="Longest pause between two mark queries of an idle harvester. goharvest: 10ms, always.",
    ),
    SettingKey(
        path="limits.maxInFlightRecords",
        kind="count",
        setting="IN_FLIGHT_MAX",
        default=1000,
        least=1,
        required=True,
        meaning="Most records that are sent and not yet purged.",
    ),
    SettingKey(
        path="limits.sendConcurrency",
        kind="count",
        setting="SEND_CONCURRENCY",
        default=8,
        least=1,
        required=True,
        meaning="Number of producers.",
    ),
    SettingKey(
        path="limits.sendBuffer",
        kind="count",
        setting="SEND_BUFFER",
        default=10,
        least=0,
        floor=1,
        meaning="Records per producer that wait in memory for their key's turn.",
    ),
    SettingKey(
        path="limits.markQueryRecords",
        kind="count",
        setting="MARK_MAX",
        default=100,
        least=1,
        required=True,
        meaning="Most records that one mark query marks.",
    ),
    SettingKey(
        path="limits.minMetricsInterval",
        kind="duration",
        setting="METRICS_INTERVAL",
        default=5.0,
        least=0,
        floor=0.1,
        meaning="Shortest time between two meter readings.",
    ),
)

# The values that such a file means, even if the environment says otherwise.
FORCED = {"DELIVERY": AT_LEAST_ONCE, "LANES": 1, "ASSIGNOR": "range"}
# Keys beside the goharvest-compatible ones.
_OWN_SETTINGS = (
    "BOOTSTRAP_SERVERS",
    "FLUSH_TIMEOUT",
    "SESSION_TIMEOUT",
    "MARK_BYTES_MAX",
    "KEY_BUFFER",
    "DEFERRED_MAX",
    "DELIVERY_TIMEOUT",
    "SWEEP_INTERVAL",
    "STATEMENT_TIMEOUT",
    "KEEP_EMPTY_KEY",
)
_KINDS = {"str": "text", "float": "duration", "int": "count", "bool": "flag"}
# Where goharvest-compatible harvesters differ, and values that follow from other keys.
_OWN_DEFAULTS: dict[str, tuple[Any, str]] = {
    "SESSION_TIMEOUT": (lambda values: 3 * values["limits.heartbeatTimeout"], "3 x heartbeatTimeout"),
    "KEEP_EMPTY_KEY": (True, ""),
}


def _camel(setting: str) -> str:
    first, *rest = setting.lower().split("_")
    return first + "".join(word.capitalize() for word in rest)


def _own(setting: str) -> SettingKey:
    spec = SPECS[setting]
    kind = _KINDS[getattr(spec.type, "__name__", "")]
    default, shown = _OWN_DEFAULTS.get(setting, (None, ""))
    below = "limits." if kind in ("duration", "count") else ""
    path, meaning = f"{below}{_camel(setting)}", spec.metadata["help"]
    return SettingKey(path=path, kind=kind, setting=setting, default=default, shown=shown, meaning=meaning)


OWN = tuple(map(_own, _OWN_SETTINGS))
KEYS = (*GOHARVEST, *OWN)
LOG_LEVEL = "logging.level"

# The election sets these itself; from baseKafkaConfig they would reach it.
FORCED_BASE = ("group.id", "enable.auto.commit", "session.timeout.ms", "delivery.timeout.ms", "linger.ms")
FORCED_EVERYWHERE = ("enable.idempotence",)
# Nobody can write heartbeats to these; an old sample of such a file names one of them.
INTERNAL_TOPICS = ("__consumer_offsets", "__transaction_state")


def flag(setting: str) -> str:
    return "--" + setting.lower().replace("_", "-")


def variable(setting: str) -> str:
    return f"OUTBOX_{setting}"
