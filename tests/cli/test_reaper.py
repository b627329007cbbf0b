"""The YAML file of the goharvest-compatible reaper: keys, defaults, rules, and all problems at once with their
lines."""

import pytest

from outbox.cli import reaper
from outbox.cli.keys import GOHARVEST, OWN

FULL = """\
harvest:
  baseKafkaConfig:
    bootstrap.servers: localhost:9093
  producerKafkaConfig:
    compression.type: lz4
  leaderTopic: leader-topic
  leaderGroupID: leader-group-id
  dataSource: data-source
  outboxTable: outbox-table
  limits:
    ioErrorBackoff: 10ms
    pollDuration: 20ms
    minPollInterval: 30ms
    maxPollInterval: 35ms
    heartbeatTimeout: 15ms
    drainInterval: 32ms
    queueTimeout: 40ms
    markBackoff: 50ms
    maxInFlightRecords: 60
    sendConcurrency: 70
    sendBuffer: 80
    markQueryRecords: 85
    minMetricsInterval: 90ms
  name: test-name
logging:
  level: Warn
"""


def read(text):
    return reaper.read(text, "r.yaml")


def complaints(text):
    return [str(problem) for problem in read(text).problems]


def limits(**values):
    lines = "".join(f"    {name}: {value}\n" for name, value in values.items())
    return read(f"harvest:\n  limits:\n{lines}")


def test_a_fully_populated_file():
    found = read(FULL)
    assert found.problems == []
    assert found.level == "Warn"
    goharvest = {key.path: found.values[key.path] for key in GOHARVEST}
    assert goharvest == {
        "baseKafkaConfig": {"bootstrap.servers": "localhost:9093"},
        "producerKafkaConfig": {"compression.type": "lz4"},
        "leaderGroupID": "leader-group-id",
        "leaderTopic": "leader-topic",
        "dataSource": "data-source",
        "outboxTable": "outbox-table",
        "name": "test-name",
        "limits.ioErrorBackoff": 0.01,
        "limits.pollDuration": 0.02,
        "limits.minPollInterval": 0.03,
        "limits.heartbeatTimeout": 0.015,
        "limits.maxPollInterval": 0.035,
        "limits.queueTimeout": 0.04,
        "limits.drainInterval": 0.032,
        "limits.markBackoff": 0.05,
        "limits.maxInFlightRecords": 60,
        "limits.sendConcurrency": 70,
        "limits.sendBuffer": 80,
        "limits.markQueryRecords": 85,
        "limits.minMetricsInterval": 0.09,
    }


@pytest.mark.parametrize("text", ["", "harvest:\n", "harvest:\n  limits:\nlogging:\n", "{}", "# nothing\n"])
def test_an_empty_file_is_the_defaults(text):
    found = read(text)
    assert found.problems == []
    assert found.level == "Debug"
    assert found.given == {}
    assert {path: value for path, value in found.values.items() if "Kafka" not in path} == {
        "leaderGroupID": "reaper",
        "leaderTopic": "reaper.neli",
        "dataSource": "host=localhost port=5432 user=postgres password= dbname=postgres sslmode=disable",
        "outboxTable": "outbox",
        "limits.ioErrorBackoff": 0.5,
        "limits.pollDuration": 0.001,
        "limits.minPollInterval": 0.1,
        "limits.heartbeatTimeout": 5,
        "limits.maxPollInterval": 2.5,
        "limits.queueTimeout": 30,
        "limits.drainInterval": 2.5,
        "limits.maxInFlightRecords": 1000,
        "limits.sendConcurrency": 8,
        "limits.sendBuffer": 10,
        "limits.markQueryRecords": 100,
        "limits.minMetricsInterval": 5,
        "limits.sessionTimeout": 15,
        "keepEmptyKey": True,
    }


def test_the_leader_topic_follows_the_group():
    assert read("harvest: {leaderGroupID: shop}").values["leaderTopic"] == "shop.neli"


def test_intervals_follow_the_heartbeat_and_the_queue_timeout():
    found = limits(heartbeatTimeout="40s").values
    assert (found["limits.maxPollInterval"], found["limits.drainInterval"]) == (20, 20)
    assert found["limits.sessionTimeout"] == 120
    assert limits(heartbeatTimeout="40s", queueTimeout="15s").values["limits.drainInterval"] == 15


@pytest.mark.parametrize(
    ("given", "text"),
    [
        *[(text, text) for text in ("2024-13-45", "2024-01-01 25:00:00")],
        *[(f"!!{tag} soon", "soon") for tag in ("bool", "int", "float", "timestamp")],
    ],
)
def test_what_only_looks_like_a_date_or_a_number_is_a_text(given, text):
    found = read(f"harvest: {{name: {given}}}")
    assert (found.values["name"], found.problems) == (text, [])


def test_a_bare_number_is_nanoseconds_as_in_go():
    found = limits(markBackoff=10_000_000, minPollInterval=100)
    assert found.values["limits.markBackoff"] == 0.01
    assert [str(problem) for problem in found.problems] == [
        "r.yaml:4: harvest.limits.minPollInterval: must be no less than 1ms. It is 100ns: raise it, or remove it."
    ]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("ioErrorBackoff", "-1ns", "must be no less than 0s. It is -1ns"),
        ("markBackoff", "-1ms", "must be no less than 0s"),
        ("minMetricsInterval", "-1s", "must be no less than 0s"),
        ("drainInterval", "0", "cannot be blank. It is 0s: set at least 1ms"),
        ("drainInterval", "1ns", "must be no less than 1ms. It is 1ns"),
        ("queueTimeout", "0s", "cannot be blank"),
        ("maxPollInterval", "0s", "cannot be blank"),
        ("pollDuration", "0s", "cannot be blank"),
        ("minPollInterval", "1us", "must be no less than 1ms"),
        ("heartbeatTimeout", "0ms", "cannot be blank"),
        ("maxInFlightRecords", "0", "cannot be blank. It is 0: set at least 1"),
        ("maxInFlightRecords", "-1", "must be no less than 1. It is -1"),
        ("sendConcurrency", "-1", "must be no less than 1"),
        ("sendBuffer", "-1", "must be no less than 0"),
        ("markQueryRecords", "0", "cannot be blank"),
        ("sendConcurrency", "many", "is 'many', not a whole number."),
        ("sendConcurrency", "1.5", "is '1.5', not a whole number."),
        ("markQueryRecords", ".nan", "is '.nan', not a whole number."),
        ("maxInFlightRecords", ".inf", "is '.inf', not a whole number."),
        ("maxInFlightRecords", "2024-13-45", "is '2024-13-45', not a whole number."),
        ("markBackoff", "soon", "is 'soon' is not a duration. Write a number with its unit"),
        ("markBackoff", "[1s]", "holds a section or a list. Write one value."),
        ("markBackoff", "1" + "0" * 400, "is not a duration. Write a number with its unit"),
        ("flushTimeout", "10", "is 10 without a unit. Write e.g. 10s or 10ms."),
    ],
)
def test_rules_of_the_limits(name, value, message):
    found = limits(**{name: value}).problems
    assert len(found) == 1
    assert str(found[0]).startswith(f"r.yaml:3: harvest.limits.{name}: ")
    assert message in str(found[0])


def test_zero_is_allowed_where_the_goharvest_harvester_allows_it():
    found = limits(ioErrorBackoff="0s", markBackoff="0", sendBuffer=0, minMetricsInterval="0ms")
    assert found.problems == []


def test_max_poll_interval_is_compared_with_a_given_min_poll_interval_only():
    assert limits(maxPollInterval="50ms").problems == []
    assert "no less than 1s" in str(limits(minPollInterval="1s", maxPollInterval="50ms").problems[0])


def test_unknown_keys_are_errors_with_the_nearest_name():
    assert complaints("harvest:\n  leadrTopic: x\n  limits:\n    sendConcurency: 1\n    zzz: 1\nlogger: {}\n") == [
        'r.yaml:2: harvest.leadrTopic: is unknown. Did you mean "leaderTopic"?',
        'r.yaml:4: harvest.limits.sendConcurency: is unknown. Did you mean "sendConcurrency"?',
        "r.yaml:5: harvest.limits.zzz: is unknown. Known: " + ", ".join(
            key.name for key in (*GOHARVEST, *OWN) if "." in key.path
        ) + ".",
        'r.yaml:6: logger: is unknown. Did you mean "logging"?',
    ]  # fmt: skip


def test_names_are_case_sensitive():
    assert complaints("harvest:\n  LeaderTopic: x\n") == [
        'r.yaml:2: harvest.LeaderTopic: is unknown. Did you mean "leaderTopic"?'
    ]


def test_all_problems_are_reported_at_once_in_the_order_of_the_file():
    found = complaints(
        "harvest:\n  nam: x\n  limits:\n    drainInterval: 0s\n    sendBuffer: x\n"
        "  baseKafkaConfig:\n    group.id: g\nlogging:\n  level: debug\n"
    )
    assert [line.split(": ")[1] for line in found] == [
        "harvest.nam",
        "harvest.limits.drainInterval",
        "harvest.limits.sendBuffer",
        "harvest.baseKafkaConfig.group.id",
        "logging.level",
    ]


@pytest.mark.parametrize("level", ["All", "Trace", "Debug", "Info", "Warn", "Error", "Off"])
def test_levels(level):
    assert read(f"logging:\n  level: {level}").level == level


@pytest.mark.parametrize("level", ["debug", "WARN", "Warning", "Fatal", "1"])
def test_other_levels_are_refused(level):
    levels = "All, Trace, Debug, Info, Warn, Error, Off"
    assert complaints(f"logging:\n  level: {level}") == [
        f"r.yaml:2: logging.level: is {level!r}. Set one of: {levels}. Upper and lower case matter."
    ]


@pytest.mark.parametrize(
    ("section", "name"),
    [
        ("baseKafkaConfig", "enable.idempotence"),
        ("producerKafkaConfig", "enable.idempotence"),
        ("baseKafkaConfig", "group.id"),
        ("baseKafkaConfig", "enable.auto.commit"),
        ("baseKafkaConfig", "session.timeout.ms"),
        ("baseKafkaConfig", "delivery.timeout.ms"),
        ("baseKafkaConfig", "linger.ms"),
    ],
)
@pytest.mark.parametrize("value", ["true", "false", "5000"])
def test_forced_properties_cannot_be_overridden(section, name, value):
    assert complaints(f"harvest:\n  {section}:\n    {name}: {value}\n") == [
        f"r.yaml:3: harvest.{section}.{name}: cannot override configuration '{name}'. Remove it."
    ]


def test_property_values_of_every_kind_become_what_the_client_takes():
    found = read(
        "harvest:\n  producerKafkaConfig:\n    a: true\n    b: no\n    c: 1_0\n    d: 0.5\n    e: '007'\n"
        "    g: 1:30\n    f: text\n"
        "    default.topic.config:\n      acks: all\n    go.batch.producer: true\n"
    )
    assert found.problems == []
    assert found.values["producerKafkaConfig"] == {
        "a": "true",
        "b": "false",
        "c": "10",
        "d": "0.5",
        "e": "007",
        "g": "1:30",
        "f": "text",
        "acks": "all",
    }
    assert found.notes == ["harvest.producerKafkaConfig.go.batch.producer is ignored: it concerns the Go client."]


def test_a_property_without_a_value_is_refused():
    assert "has no usable value for a" in complaints("harvest:\n  baseKafkaConfig:\n    a:\n")[0]


def test_texts_stay_texts_even_if_yaml_reads_another_type():
    found = read("harvest:\n  leaderTopic: 123\n  leaderGroupID: yes\n  name: 2020-01-01\n")
    assert [found.values[name] for name in ("leaderTopic", "leaderGroupID", "name")] == ["123", "yes", "2020-01-01"]


def test_a_name_with_a_per_cent_sign_is_refused():
    assert "a heartbeat cannot carry a per cent sign" in complaints("harvest:\n  name: a%b\n")[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("harvest: [", "r.yaml:1: is not valid YAML"),
        ("harvest:\n\tname: x", "r.yaml:2: is not valid YAML"),
        ("- a", "r.yaml:1: is not a mapping"),
        ("text", "r.yaml:1: is not a mapping"),
        ("harvest: text", "r.yaml:1: harvest: is not a section"),
        ("harvest:\n  limits: 5", "r.yaml:2: harvest.limits: is not a section"),
        ("harvest:\n  baseKafkaConfig: x", "r.yaml:2: harvest.baseKafkaConfig: is not a section"),
        ("harvest:\n  name: a\n  name: b", "r.yaml:3: harvest.name: is set twice"),
        ("harvest: &a\n  limits: *a", "contains itself through an alias"),
        ("a: 1\n---\nb: 2", "is not valid YAML"),
    ],
)
def test_form_errors_name_the_line(text, message):
    assert any(message in line for line in complaints(text))


def test_anchors_and_merge_keys_work():
    found = read(
        "harvest:\n  baseKafkaConfig: &base\n    a: 1\n    b: 2\n  producerKafkaConfig:\n    <<: *base\n    b: 3\n"
    )
    assert found.problems == []
    assert found.values["producerKafkaConfig"] == {"a": "1", "b": "3"}
