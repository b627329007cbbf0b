"""Metrics over HTTP from a real harvest process, compared with the truth; dashboard and alerts on a real Prometheus."""

import json
import os
import re
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from types import SimpleNamespace

import psycopg
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from outbox.contrib import consumer_metrics, metrics_server, prometheus
from outbox.contrib.metrics_server import serving
from outbox.contrib.prometheus import CATALOGUE
from outbox.edges.postgres.counts.backlog import Backlog
from outbox.exceptions import OutboxError
from outbox.harvest.metrics import Measurements
from outbox.service.http import address_of
from tests.harvest.processes import Harvest
from tests.support import promtool
from tests.support.databases import ROOT, fresh_database
from tests.support.topics import create_topic

EVERYTHING = {**CATALOGUE, **consumer_metrics.CATALOGUE}
DOCUMENT = ROOT / "docs" / "metrics.md"
MONITORING = ROOT / "outbox" / "contrib" / "monitoring"
ROW = re.compile(r"^\| `(?:outbox_\w+|x)` \|.*\|\n", re.MULTILINE)
NAME = re.compile(r"\boutbox_\w+")
INSERT = "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) SELECT %s, %s, v FROM unnest(%s::text[]) AS v"
CANARY = "canary-4111-1111"


@pytest.mark.parametrize("catalogue", [CATALOGUE, consumer_metrics.CATALOGUE])
def test_the_document_lists_the_catalogue(catalogue):
    """When this fails: WRITE_DOCS=1 pytest tests/contrib/test_prometheus.py"""
    rows = "".join(f"| `{name}` | {kind} | {meaning} |\n" for name, (kind, meaning) in catalogue.items())

    def found():
        of_consumers = catalogue is consumer_metrics.CATALOGUE
        return [row for row in ROW.finditer(DOCUMENT.read_text()) if ("outbox_consumer_" in row[0]) is of_consumers]

    if os.environ.get("WRITE_DOCS"):
        text, old = DOCUMENT.read_text(), found()
        DOCUMENT.write_text(text[: old[0].start()] + rows + text[old[-1].end() :])
    assert "".join(row[0] for row in found()) == rows


def expressions():
    """Every query of the dashboard and of the alerts."""
    dashboard = json.loads((MONITORING / "grafana.json").read_text())
    found = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    rules = yaml.safe_load((MONITORING / "alerts.yml").read_text())
    return found, [rule["expr"] for group in rules["groups"] for rule in group["rules"]]


def alert_rules():
    groups = yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def base_name(name):
    return re.sub(r"_(bucket|sum|count)$", "", name) if name not in EVERYTHING else name


def test_dashboard_and_alerts_use_names_that_exist_and_the_dashboard_shows_them_all():
    shown, alerted = ({base_name(name) for text in texts for name in NAME.findall(text)} for texts in expressions())
    assert shown <= EVERYTHING.keys()
    assert alerted <= EVERYTHING.keys()
    assert EVERYTHING.keys() - shown == {"outbox_info", "outbox_consumer_info"}  # the variable `job` asks for them


def test_every_alert_is_explained_and_says_what_to_do():
    rules, runbook = alert_rules(), (ROOT / "docs" / "runbook.md").read_text()
    told = re.findall(r"^\| `(Outbox\w+)` \|", DOCUMENT.read_text(), re.MULTILINE)
    assert told == [rule["alert"] for rule in rules]
    assert all(rule["annotations"]["summary"] and rule["annotations"]["action"] for rule in rules)
    of_consumers = [rule["alert"] for rule in rules if "outbox_consumer_" in rule["expr"]]
    assert [name for name in of_consumers if f"alert `{name}`" not in runbook] == []


# ---- the server by itself


def fake(**more):
    values = {"state": "running", "is_ready": True, "led_last": False, "events_dropped": 0, **more}
    return SimpleNamespace(conf=SimpleNamespace(name="n", delivery="d"), measured=Measurements().read([]), **values)


def get(address, path):
    try:
        with urllib.request.urlopen(f"http://{address[0]}:{address[1]}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_probes_follow_the_harvester():
    harvester = fake(is_ready=False)
    with serving(harvester, "127.0.0.1:0") as address:
        assert get(address, "/livez") == (200, "running\n")
        assert get(address, "/readyz?verbose")[0] == 503
        harvester.is_ready = True
        assert get(address, "/readyz") == (200, "ready\n")
        harvester.state = "stopped"
        assert get(address, "/livez") == (503, "stopped\n")
        assert get(address, "/")[0] == 404


def test_metrics_that_cannot_be_read_are_an_answer_and_no_end():
    with serving(SimpleNamespace(state="running", led_last=False), "127.0.0.1:0") as address:
        assert get(address, "/metrics") == (500, "AttributeError: see the log\n")
        assert get(address, "/livez")[0] == 200


def test_an_address_that_cannot_be_had_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(OutboxError, match=f"--metrics-port 127.0.0.1:{port}: the process cannot listen there: "):
            serving(fake(), f"127.0.0.1:{port}").__enter__()
    for spec in ("", "http", "1:2:x", "70000", "-1"):
        with pytest.raises(OutboxError, match="is not a port"):
            address_of(spec)
    assert address_of("[::1]:80") == ("::1", 80)


def broken(conf):
    raise psycopg.OperationalError("no connection")


def sample_of(records, **given):
    return prometheus.TableSample(0.0, Backlog(records, False, 0.0, records), 0, **given)


def test_a_sample_that_fails_leaves_the_last_one_and_is_told_once(monkeypatch, caplog):
    sampler = prometheus.Sampler(SimpleNamespace(conf=None), 0.001)
    sampler.sample = before = sample_of(1)
    monkeypatch.setattr(prometheus, "take_sample", broken)
    monkeypatch.setattr(prometheus, "take_lag", lambda conf: None)
    caplog.set_level("INFO", "outbox")
    for _ in range(3):
        sampler._take()
    assert sampler.sample == before
    monkeypatch.setattr(prometheus, "take_sample", lambda conf: sample_of(2))
    sampler._take()
    assert sampler.sample == sample_of(2)
    assert [line.split()[0] for line in caplog.messages] == ["sampling_failed", "sampling_works_again"]


def test_a_ledger_that_cannot_be_asked_leaves_the_numbers_of_the_table(monkeypatch, caplog):
    sampler = prometheus.Sampler(SimpleNamespace(conf=None), 0.001)
    sampler.sample = sample_of(1, lso_lag=7)
    seen = []
    monkeypatch.setattr(prometheus, "take_sample", lambda conf: sample_of(2))

    def broken_later(conf):
        seen.append(sampler.sample)
        return broken(conf)

    monkeypatch.setattr(prometheus, "take_lag", broken_later)
    sampler._take()
    assert seen == [sample_of(2, lso_lag=7)], "told before the brokers are asked"
    assert sampler.sample == sample_of(2), "an old lag is no news"
    assert [line.split()[0] for line in caplog.messages] == ["lag_sampling_failed"]
    monkeypatch.setattr(prometheus, "take_lag", lambda conf: 3)
    sampler._take()
    assert sampler.sample == sample_of(2, lso_lag=3)


def test_who_does_not_own_lane_0_asks_nothing(monkeypatch):
    monkeypatch.setattr(prometheus, "take_sample", lambda conf: pytest.fail("asked"))
    sampler = prometheus.Sampler(SimpleNamespace(led_last=False), 0.001)
    sampler.sample = "of a former time"
    sampler.start()
    deadline = time.monotonic() + 10
    while sampler.sample is not None:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    sampler.stop()


# ---- a harvest process


class Shop:
    def __init__(self, url, servers, folder):
        self.topic = create_topic(servers, 2, **{"max.message.bytes": "5000"})
        self.db = psycopg.connect(url, autocommit=True)
        name = f"shop-{uuid.uuid4().hex[:8]}"  # two workers of one run share a Kafka
        self.process = Harvest(folder, url, "--metrics-port", "127.0.0.1:0", "--verbosity", "2", OUTBOX_NAME=name)
        said = self.process.says(r"metrics_served address=(\S+) port=(\d+)")
        self.address = said[1], int(said[2])
        self.process.leads()

    def insert(self, key, values):
        self.db.execute(INSERT, [self.topic, key, values])

    def samples(self):
        status, text = get(self.address, "/metrics")
        assert status == 200
        families = list(text_string_to_metric_families(text))
        return [sample for family in families for sample in family.samples if sample.name.startswith("outbox_")]

    def wait(self, condition, timeout_s=100):
        deadline = time.monotonic() + timeout_s
        while True:
            found = {(sample.name, *sample.labels.values()): sample.value for sample in self.samples()}
            if condition({name[0]: value for name, value in found.items() if len(name) == 1}):
                return found
            assert time.monotonic() < deadline, (found, self.process.log)
            time.sleep(0.1)

    def wait_names(self, condition, timeout_s=60):
        deadline = time.monotonic() + timeout_s
        while not condition(names := {base_name(sample.name) for sample in self.samples()}):
            assert time.monotonic() < deadline, names ^ CATALOGUE.keys()
            time.sleep(0.1)


@pytest.fixture(scope="module")
def shop(postgres, migrated_template, bootstrap_servers, tmp_path_factory):
    with fresh_database(os.environ["DATABASE_URL"], migrated_template) as url:
        made = Shop(url, bootstrap_servers, tmp_path_factory.mktemp("shop"))
        try:
            yield made
        finally:
            made.process.discard()
            made.db.close()


def test_the_numbers_are_those_of_the_table_and_of_kafka(shop):
    shop.insert("good", [str(number) for number in range(50)])
    shop.insert("poison", [CANARY + os.urandom(6000).hex(), "waits"])
    found = shop.wait(
        lambda now: (
            now["outbox_delivered_records_total"] == 50
            and now.get("outbox_backlog_records") == 2
            and now["outbox_held_keys"] == 1
            and now["outbox_rejected_records_total"] >= 1
            and now.get("outbox_stashed_records_total", 0) >= 50  # PostgreSQL counts them when it has time
        )
    )
    assert found["outbox_ready",] == 1
    assert found["outbox_elections_total",] >= 1  # a busy machine may lose the lane for a moment
    assert found["outbox_batches_total",] == found["outbox_batch_size_records_count",] >= 1
    assert found["outbox_batch_size_records_sum",] == 50
    assert found["outbox_commit_duration_seconds_count",] == found["outbox_batches_total",]
    assert 0 < found["outbox_oldest_record_age_seconds",] < 120
    shop.wait(lambda now: now["outbox_ledger_lag_batches"] == 0 and "outbox_lso_lag_offsets" in now)
    labels = {label for sample in shop.samples() for label in sample.labels}
    assert labels <= {"lane", "le", "version", "name", "delivery"}, "cardinality stays low"
    shop.wait_names(lambda names: names == CATALOGUE.keys())
    assert get(shop.address, "/readyz") == (200, "ready\n")
    assert "record_held" in shop.process.log
    for number in range(100):  # one page a second is sampled
        shop.insert("good", ["later"])
        now = shop.wait(lambda now, number=number: now["outbox_delivered_records_total"] == 51 + number)
        if now["outbox_delivery_delay_seconds_count",]:
            break
    assert 0 < now["outbox_delivery_delay_seconds_sum",] < 60
    assert CANARY not in shop.process.log, "no payload in the log"


@pytest.fixture(scope="session")
def binaries(tmp_path_factory):
    """Folder with prometheus and promtool: of the machine, or unpacked from the distribution's package."""
    if found := promtool.installed():
        return os.path.dirname(found)
    absent = pytest.fail if os.environ.get("CI") else pytest.skip
    if not promtool.can_be_fetched():
        absent("promtool is not installed, and only root can fetch it with apt-get")
    folder = tmp_path_factory.mktemp("prometheus")
    for command in (["apt-get", "download", "prometheus"], ["sh", "-c", "dpkg -x prometheus_*.deb ."]):
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=90, check=False)
        if done.returncode:
            absent(f"promtool cannot be fetched: {done.stderr[-300:]}")
    return str(folder / "usr" / "bin")


SITUATIONS = {
    "OutboxNobodyHarvests": {'outbox_lane_owned{lane="1"}': "1x30"},
    "OutboxRecordsWaitLong": {"outbox_oldest_record_age_seconds": "300x30"},
    "OutboxBacklogGrows": {"outbox_backlog_records": "20000+500x30"},
    "OutboxServerUnavailable": {"outbox_circuits_open": "1x30"},
    "OutboxKeysHeld": {"outbox_held_keys": "2x30"},
    "OutboxDeadLetters": {"outbox_dead_letters": "1x30"},
    "OutboxLedgerLags": {
        "outbox_ledger_lag_batches": "1x30",
        "outbox_batches_total": "7x30",
        "outbox_lso_lag_offsets": "0x30",
    },
    "OutboxTransactionHangs": {
        "outbox_lso_lag_offsets": "3x30",
        "outbox_batches_total": "7x30",
        "outbox_ledger_lag_batches": "0x30",
    },
    "OutboxFencedOften": {"outbox_fences_total": "0+1x30"},
    "OutboxNotReady": {"outbox_ready": "0x30"},
    "OutboxSamplesStale": {"outbox_sample_age_seconds": "100x30"},
    "OutboxEventsDropped": {"outbox_events_dropped_total": "0+1x30"},
    "OutboxNobodyConsumes": {'outbox_consumer_partitions{consumer="shop.pay", state="reading"}': "0x30"},
    "OutboxPartitionStopped": {'outbox_consumer_partitions{consumer="shop.pay", state="stopped"}': "1x30"},
    "OutboxConsumerFailing": {'outbox_consumer_failing{consumer="shop.pay"}': "1x30"},
    "OutboxConsumerWaits": {'outbox_consumer_waiting{consumer="shop.pay"}': "1x30"},
    "OutboxConsumerLags": {'outbox_consumer_lag_seconds{consumer="shop.pay"}': "400x30"},
    "OutboxMessagesFail": {'outbox_consumer_failed_attempts_total{consumer="shop.pay"}': "0+2x30"},
    "OutboxMessagesHeld": {'outbox_consumer_undecided_messages{consumer="shop.pay"}': "2x30"},
    "OutboxConsumerDeadLetters": {'outbox_consumer_dead_letters{consumer="shop.pay"}': "2x30"},
    "OutboxConsumerNotReady": {"outbox_consumer_ready": "0x30"},
    "OutboxConsumerSamplesStale": {"outbox_consumer_sample_age_seconds": "100x30"},
}
ALL_IS_WELL = {
    "outbox_info": "1x30",
    'outbox_lane_owned{lane="0"}': "1x30",
    "outbox_oldest_record_age_seconds": "0.1x30",
    "outbox_backlog_records": "50000-100x30",
    "outbox_circuits_open": "0x30",
    "outbox_held_keys": "0x30",
    "outbox_dead_letters": "0x30",
    "outbox_ledger_lag_batches": "1x30",
    "outbox_lso_lag_offsets": "3x30",
    "outbox_batches_total": "0+7x30",
    "outbox_fences_total": "1x30",
    "outbox_ready": "1x30",
    "outbox_sample_age_seconds": "4x30",
    "outbox_events_dropped_total": "5x30",
    "outbox_consumer_info": "1x30",
    "outbox_consumer_ready": "1x30",
    'outbox_consumer_partitions{consumer="shop.pay", state="reading"}': "3x30",
    'outbox_consumer_partitions{consumer="shop.pay", state="stopped"}': "0x30",
    'outbox_consumer_waiting{consumer="shop.pay"}': "0x30",
    'outbox_consumer_failing{consumer="shop.pay"}': "0x30",
    'outbox_consumer_lag_seconds{consumer="shop.pay"}': "2x30",
    'outbox_consumer_failed_attempts_total{consumer="shop.pay"}': "3x30",
    'outbox_consumer_held_messages{consumer="shop.pay"}': "9x30",
    'outbox_consumer_undecided_messages{consumer="shop.pay"}': "0x30",
    'outbox_consumer_dead_letters{consumer="shop.pay"}': "0x30",
    "outbox_consumer_sample_age_seconds": "5x30",
}


def series(given):
    """Over those of a healthy application."""
    merged = {**ALL_IS_WELL, **given}
    if 'outbox_lane_owned{lane="1"}' in given:
        del merged['outbox_lane_owned{lane="0"}']
    for name, values in merged.items():
        metric, _, labels = name.partition("{")
        labels = f'job="shop", instance="a"{", " + labels.rstrip("}") if labels else ""}'
        first = values.partition("x")[0]
        shown = values if "+" in first or "-" in first[1:] else values.replace("x", "+0x")
        yield {"series": f"{metric}{{{labels}}}", "values": shown}
    for metric in ("outbox_info{", 'outbox_lane_owned{lane="0", '):  # of another application, which is well
        yield {"series": f'{metric}job="other", instance="b"}}', "values": "1+0x30"}


def test_every_alert_fires_in_its_situation_and_none_when_all_is_well(binaries, tmp_path):
    shutil.copy(MONITORING / "alerts.yml", tmp_path)
    assert list(SITUATIONS) == [rule["alert"] for rule in alert_rules()]
    # Annotations are compared as well, so each query is asked for its own: firing is ALERTS{alertstate="firing"}.
    tests = [
        {
            "interval": "1m",
            "input_series": list(series(given)),
            "promql_expr_test": [
                {
                    "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                    "eval_time": "25m",
                    "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1}] if name else [],
                }
            ],
        }
        for name, given in [*SITUATIONS.items(), ("", {})]
    ]
    (tmp_path / "test.yml").write_text(yaml.safe_dump({"rule_files": ["alerts.yml"], "tests": tests}))
    for arguments in (["check", "rules", "alerts.yml"], ["test", "rules", "test.yml"]):
        done = subprocess.run(
            [f"{binaries}/promtool", *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_a_real_prometheus_scrapes_and_answers_every_query(binaries, shop, tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    target = f"{shop.address[0]}:{shop.address[1]}"
    scrape = {"job_name": "shop", "scrape_interval": "500ms", "static_configs": [{"targets": [target]}]}
    config = {"scrape_configs": [scrape], "rule_files": [str(MONITORING / "alerts.yml")]}
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [f"{binaries}/prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=data",
             f"--web.listen-address=127.0.0.1:{port}"],
            cwd=tmp_path, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        query(port, 'outbox_lane_owned{job="shop"}', at_least=1)
        query(port, "count_over_time(outbox_ready[1m]) > 2", at_least=1)
        dashboard, alerts = expressions()
        for text in dashboard:
            text = text.replace("$__rate_interval", "1m").replace("$job", "shop")
            may_be_absent = re.search("consumer|dead_letters|stashed|delay|lso_lag|histogram", text)
            query(port, text, at_least=0 if may_be_absent else 1)
        for text in alerts:
            query(port, text)
    finally:
        process.terminate()
        process.wait(30)


def query(port, text, at_least=0):
    deadline = time.monotonic() + 90
    while True:
        url = f"http://127.0.0.1:{port}/api/v1/query?{urllib.parse.urlencode({'query': text})}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                found = json.load(answer)["data"]["result"]
            if len(found) >= at_least:
                return found
        except urllib.error.HTTPError as error:
            if error.code != 503:  # starting
                raise AssertionError(f"{text}: {error.read().decode()}") from error
        except urllib.error.URLError:
            pass
        assert time.monotonic() < deadline, text
        time.sleep(0.2)


def test_the_command_names_the_missing_extra(monkeypatch):
    import builtins

    real = builtins.__import__

    def without(name, *arguments, **named):
        if name.startswith("prometheus_client"):
            raise ImportError("no", name="prometheus_client")
        return real(name, *arguments, **named)

    import importlib
    import sys

    for module in ("outbox.contrib.exposition", "outbox.contrib.prometheus", "outbox.contrib.metrics_server"):
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(
        ImportError, match=r'prometheus_client is not installed.*pip install "django-transactional-outbox\[metrics\]"'
    ):
        importlib.import_module("outbox.contrib.metrics_server")
    assert metrics_server is not None
