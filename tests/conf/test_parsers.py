"""Each setting alone: what is accepted, and what is said of the rest."""

from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command
from django.db.utils import ConnectionDoesNotExist
from django.test import override_settings

from outbox import conf
from tests.conf.kit import errors_of, text_of
from tests.support.databases import ROOT


@pytest.mark.parametrize("value", [True, 0, -1, 1.5, None])
def test_a_count_outside_its_limits_is_refused(value):
    assert "KEY_MAX_BYTES" in errors_of({"KEY_MAX_BYTES": value})


def test_there_is_one_limit_of_lanes_for_the_setting_the_command_and_the_documents():
    assert conf.LANES_MAX == 10_000
    assert conf.parse({"LANES": conf.LANES_MAX}).election.lanes == conf.LANES_MAX
    assert "Set a whole number from 1 to 10,000." in errors_of({"LANES": conf.LANES_MAX + 1})["LANES"]
    for lanes in (0, conf.LANES_MAX + 1):
        with pytest.raises(CommandError, match=r"Set a number from 1 to 10000\."):
            call_command("outbox_lanes", str(lanes))
    with pytest.raises(ConnectionDoesNotExist):  # the number is accepted
        call_command("outbox_lanes", str(conf.LANES_MAX), database="absent")
    assert "There can be 10,000 lanes" in (ROOT / "docs" / "lanes.md").read_text()


@pytest.mark.parametrize(("value", "seconds"), [(5, 5.0), (0.25, 0.25), (timedelta(minutes=1), 60.0)])
def test_durations_are_seconds_or_timedeltas(value, seconds):
    assert conf.parse({"FLUSH_TIMEOUT": value}).election.flush_timeout_s == seconds


@pytest.mark.parametrize("value", ["5s", -1, timedelta(0), True])
def test_a_duration_that_is_none_is_refused(value):
    assert "FLUSH_TIMEOUT" in errors_of({"FLUSH_TIMEOUT": value})


@pytest.mark.parametrize("table", ["", "a.b", 'a"b', "a%b", "a\nb", "é" * 29, 7, "\ud800", "a$b"])
def test_a_table_name_that_cannot_be_quoted_everywhere_is_refused(table):
    assert "TABLE" in errors_of({"TABLE": table})
    with override_settings(OUTBOX={"TABLE": table}):
        assert conf.table_name() == "outbox"


@pytest.mark.parametrize("servers", ["http//x", "a b:9", "host:port", "a:1:2"])
def test_servers_are_host_and_port(servers):
    assert "BOOTSTRAP_SERVERS" in errors_of({"BOOTSTRAP_SERVERS": servers})


@pytest.mark.parametrize(
    "misplaced",
    [
        "user:hunter2@host:9092",
        "SASL_SSL://user:hun@ter2,hunter2@host:9092",
        "postgresql://user:hunter2@host/database",
        "sasl.username=user\nsasl.password=hunter2",
        "sasl.password=hunter2",
        '{"sasl.password": "hunter2"}',
        {"sasl.password": "hunter2"},
        [{"sasl.password": "hunter2"}],
        b"hunter2",
    ],
    ids=repr,
)
@pytest.mark.parametrize("key", conf.SPECS)
def test_no_error_quotes_a_secret_that_was_set_under_the_wrong_key(key, misplaced):
    assert "hunter2" not in text_of(key, misplaced)


@pytest.mark.parametrize(
    "value", [10**5000, "\ud800", float("nan"), object(), "x" * 100_000], ids=["huge", "half", "nan", "object", "long"]
)
@pytest.mark.parametrize("key", conf.SPECS)
def test_no_value_is_too_odd_for_an_error(key, value):
    assert len(text_of(key, value)) < 1_000
