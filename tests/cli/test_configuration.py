"""Flags over environment over file over defaults, and the values that a goharvest-compatible file implies."""

import pytest

from outbox.cli import configuration, options
from outbox.cli.configuration import ConfigurationRefused, split_identifier

SECURE = """\
harvest:
  baseKafkaConfig:
    bootstrap.servers: localhost:9094
    security.protocol: sasl_ssl
    ssl.ca.location: ca-cert.pem
    sasl.mechanism: SCRAM-SHA-512
    sasl.username: alice
    sasl.password: alice-secret
  leaderTopic: __consumer_offsets
  leaderGroupID: my-app-name
  dataSource: host=localhost port=5432 user=postgres password= dbname=postgres sslmode=disable
  outboxTable: outbox
logging:
  level: Debug
"""


def settle(text="", *flags, **environment):
    given = options.parser().parse_args(["-f", "r.yaml", *flags])
    return configuration.settle(text, "r.yaml", environment, options.from_flags(given), 42)


def refusals(*arguments, **environment):
    with pytest.raises(ConfigurationRefused) as refused:
        settle(*arguments, **environment)
    return str(refused.value).splitlines()


def test_an_empty_file_means_a_goharvest_harvester():
    found = settle()
    conf = found.conf
    assert (conf.name, conf.election.leader_topic) == ("reaper", "reaper.neli")
    assert (conf.delivery, conf.election.lanes, conf.election.assignor) == ("at-least-once", 1, "range")
    assert (conf.election.heartbeat_timeout_s, conf.election.session_timeout_s) == (5, 15)
    assert conf.kafka.bootstrap_servers == "localhost:9092"
    assert (conf.at_least_once.in_flight_max, conf.at_least_once.send_concurrency, conf.at_least_once.mark_max) == (
        1000,
        8,
        100,
    )
    assert conf.harvest.keep_empty_key
    assert not conf.stash.binary_values
    assert conf.kafka.producer == {"partitioner": "consistent_random"}
    assert found.database["NAME"] == "postgres"
    assert found.level == "Debug"
    assert found.member_name.split("_")[-2] == "42"


def test_what_the_file_says_becomes_settings():
    found = settle(
        "harvest:\n  leaderGroupID: shop\n  outboxTable: app.outbox\n  name: n1\n"
        "  limits: {heartbeatTimeout: 4s, maxInFlightRecords: 7, markBackoff: 0s, sendBuffer: 0, flushTimeout: 3s}\n"
        "logging: {level: Warn}\n"
    )
    conf = found.conf
    assert (conf.name, conf.election.leader_topic, conf.table) == ("shop", "shop.neli", "outbox")
    assert (conf.election.heartbeat_timeout_s, conf.election.session_timeout_s, conf.at_least_once.in_flight_max) == (
        4,
        12,
        7,
    )
    assert (conf.harvest.mark_backoff_s, conf.at_least_once.send_buffer, conf.election.flush_timeout_s) == (0.001, 1, 3)
    assert found.database["OPTIONS"]["options"] == '-c search_path="app"'
    assert (found.member_name, found.level) == ("n1", "Warn")


def test_a_flag_wins_over_the_environment_and_that_over_the_file():
    text = "harvest:\n  limits: {queueTimeout: 1s}\n"
    assert settle(text).conf.at_least_once.queue_timeout_s == 1
    assert settle(text, OUTBOX_QUEUE_TIMEOUT="2").conf.at_least_once.queue_timeout_s == 2
    assert settle(text, OUTBOX_QUEUE_TIMEOUT="2500ms").conf.at_least_once.queue_timeout_s == 2.5
    assert settle(text, "--queue-timeout", "3s", OUTBOX_QUEUE_TIMEOUT="2").conf.at_least_once.queue_timeout_s == 3
    assert settle(text, "--queue-timeout=4").conf.at_least_once.queue_timeout_s == 4


def test_what_follows_from_a_value_follows_from_the_one_that_holds():
    assert settle("", "--heartbeat-timeout", "3s").conf.election.session_timeout_s == 9
    assert settle("", "--name", "shop").conf.election.leader_topic == "shop.neli"
    assert settle("harvest: {leaderTopic: t}", "--name", "shop").conf.election.leader_topic == "t"
    assert (
        settle("harvest: {limits: {sessionTimeout: 20s}}", "--heartbeat-timeout", "3").conf.election.session_timeout_s
        == 20
    )


def test_properties_are_merged_by_name():
    found = settle(
        "harvest:\n  baseKafkaConfig: {a.b: 1, c.d: 2}\n", OUTBOX_KAFKA="a.b=3", OUTBOX_PRODUCER='{"linger.ms": 7}'
    )
    assert found.conf.kafka.properties == {"a.b": "3", "c.d": "2", "bootstrap.servers": "localhost:9092"}
    assert found.conf.kafka.producer == {"partitioner": "consistent_random", "linger.ms": 7}


def test_bootstrap_servers_are_replaced_not_contradicted():
    text = "harvest:\n  baseKafkaConfig: {bootstrap.servers: 'a:1'}\n"
    assert settle(text).conf.kafka.bootstrap_servers == "a:1"
    assert settle(text, OUTBOX_BOOTSTRAP_SERVERS="b:1").conf.kafka.bootstrap_servers == "b:1"
    assert (
        settle(text, "--bootstrap-servers", "c:1", OUTBOX_BOOTSTRAP_SERVERS="b:1").conf.kafka.bootstrap_servers == "c:1"
    )


def test_the_data_source_of_the_file_is_not_replaced_by_a_stray_database_url():
    text = "harvest: {dataSource: 'user=u dbname=file sslmode=disable'}"
    url = "postgres://x@db/url"
    assert settle(text, DATABASE_URL=url).database["NAME"] == "file"
    assert settle("", DATABASE_URL=url).database["NAME"] == "url"
    assert settle(text, OUTBOX_DATA_SOURCE="user=u dbname=env").database["NAME"] == "env"
    assert settle(text, "--data-source", "dbname=flag", OUTBOX_DATA_SOURCE="dbname=env").database["NAME"] == "flag"
    assert settle("harvest: {outboxTable: s.t}", DATABASE_URL=url).database["OPTIONS"] == {
        "options": '-c search_path="s"'
    }


def test_level_and_member_name_come_from_anywhere():
    text = "harvest: {name: file}\nlogging: {level: Error}"
    assert (settle(text).level, settle(text).member_name) == ("Error", "file")
    found = settle(text, "--log-level", "Off", OUTBOX_LOG_LEVEL="Info", OUTBOX_MEMBER_NAME="env")
    assert (found.level, found.member_name) == ("Off", "env")
    levels = "All, Trace, Debug, Info, Warn, Error, Off"
    assert refusals(text, OUTBOX_LOG_LEVEL="info") == [
        f"OUTBOX_LOG_LEVEL: is 'info'. Set one of: {levels}. Upper and lower case matter."
    ]


def test_the_documented_sample_with_sasl_ssl_works():
    found = settle(SECURE)
    assert found.conf.kafka.properties == {
        "bootstrap.servers": "localhost:9094",
        "security.protocol": "sasl_ssl",
        "ssl.ca.location": "ca-cert.pem",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "alice",
        "sasl.password": "alice-secret",
    }
    assert found.conf.election.leader_topic == "my-app-name.neli"
    assert found.notes == [
        "leaderTopic __consumer_offsets cannot take heartbeats; the harvester uses my-app-name.neli instead."
    ]
    assert "alice" not in repr(found)
    assert (found.database["PASSWORD"], found.database["NAME"]) == ("", "postgres")


def test_every_client_accepts_the_properties_of_the_sample(tmp_path):
    from confluent_kafka import Producer

    from outbox.election.clients import Clients, member_properties

    ca = tmp_path / "ca.pem"
    ca.write_text("")
    text = SECURE.replace("    ssl.ca.location: ca-cert.pem\n", "    enable.ssl.certificate.verification: false\n")
    found = settle(text)
    Producer({**found.conf.producer_properties, "enable.idempotence": True}).purge()
    assert Clients(found.conf).producer(print) is not None
    assert member_properties(found.conf)["group.id"] == "my-app-name"


def test_delivery_timeouts_stay_below_the_time_a_leader_is_trusted():
    def delivery(value, *flags):
        return settle(f"harvest:\n  producerKafkaConfig: {{delivery.timeout.ms: {value}}}\n", *flags)

    assert delivery(4000).conf.at_least_once.delivery_timeout_s == 4
    assert delivery(10000).conf.at_least_once.delivery_timeout_s == 9
    assert delivery(10000).notes == ["delivery.timeout.ms 10000 is cut to 9s: the group trusts a leader no longer."]
    assert delivery(4000, "--delivery-timeout", "2s").conf.at_least_once.delivery_timeout_s == 2
    assert "delivery.timeout.ms" not in delivery(4000).conf.kafka.producer


def test_what_the_election_decides_is_left_out_with_a_note():
    found = settle("harvest:\n  baseKafkaConfig: {max.poll.interval.ms: 1, partition.assignment.strategy: range}\n")
    assert "max.poll.interval.ms" not in found.conf.kafka.properties
    assert len(found.notes) == 2


def test_the_partitioner_of_the_file_is_kept():
    assert settle("harvest: {producerKafkaConfig: {partitioner: murmur2}}").conf.kafka.producer == {
        "partitioner": "murmur2"
    }
    assert settle("harvest: {baseKafkaConfig: {partitioner: murmur2}}").conf.kafka.producer == {}


def test_all_problems_of_all_sources_come_at_once_with_their_place():
    found = refusals(
        "harvest:\n  leaderTopic: a b\n  dataSource: nonsense\n  limits: {heartbeatTimeout: 100ms, nope: 1}\n",
        "--in-flight-max",
        "many",
        OUTBOX_QUEUE_TIMEOUT="later",
        OUTBOX_QUEUE_TIMOUT="1",
        OUTBOX_DELIVERY="exactly-once",
    )
    starts = [line.split(" ")[0] for line in found]
    assert sorted(starts) == sorted([
        "OUTBOX_QUEUE_TIMEOUT:",
        "OUTBOX_QUEUE_TIMOUT:",
        "OUTBOX_DELIVERY:",
        "r.yaml:4:",  # nope
        "r.yaml:3:",  # dataSource
        "--in-flight-max:",
        "r.yaml:2:",
        "r.yaml:4:",  # heartbeatTimeout
        "harvest",  # the session time-out that follows from it
    ])  # fmt: skip
    assert any("Did you mean" in line and "QUEUE_TIMEOUT" in line for line in found)


def test_variables_of_stashing_processes_do_not_disturb():
    found = settle("", OUTBOX_SERIALIZER="x.y", OUTBOX_FAILPOINTS="a=kill", OUTBOX_DELIVERY="at-least-once")
    assert found.conf.stash.serializer == "outbox.serializers.json"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("outbox", ["outbox"]),
        ("Outbox", ["outbox"]),
        ('"Outbox"', ["Outbox"]),
        ("app.Outbox", ["app", "outbox"]),
        ('"My App"."out""box"', ["My App", 'out"box']),
        ('app."order"', ["app", "order"]),
        ("order", ["order"]),
        ("outbox-table", ["outbox-table"]),
        ("a.b.c", None),
        ("a b", None),
        ('"a', None),
        ("", None),
        (".a", None),
    ],
)
def test_table_names_are_read_as_in_sql(text, names):
    assert split_identifier(text) == names


def test_a_wrong_table_is_reported():
    (told,) = refusals("harvest: {outboxTable: a.b.c}")
    assert told.startswith("r.yaml:1: harvest.outboxTable: is 'a.b.c'. Write table, schema.table, or each in double")


def test_a_secret_on_the_command_line_is_warned_of():
    found = settle(
        "", "--data-source", "host=db user=u password=one dbname=d sslmode=disable",
        "--kafka", "sasl.username=u,sasl.password=two", "--producer", "linger.ms=1",
    )  # fmt: skip
    seen = "every user of this machine can read it in the list of processes"
    assert found.notes == [
        f"--data-source holds the password: {seen}. Set OUTBOX_DATA_SOURCE, or dataSource in the file.",
        f"--kafka holds sasl.password: {seen}. Set OUTBOX_KAFKA, or baseKafkaConfig in the file.",
    ]
    [note] = settle("", "--data-source", "postgres://u:one@db/d?sslmode=disable").notes
    assert note.startswith("--data-source holds the password")
    sources = {"OUTBOX_DATA_SOURCE": "host=db password=one sslmode=disable", "OUTBOX_KAFKA": "sasl.password=two"}
    assert settle("", "--data-source", "host=db dbname=d sslmode=disable", **sources).notes == []
