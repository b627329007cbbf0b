"""Which replays are begun, continued and cancelled, on a real PostgreSQL and a real Kafka."""

import json
import time
import uuid
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction

from outbox import conf
from outbox.consumers import registry
from outbox.core.consumers.values import Partition, Position
from outbox.edges.kafka.common.clients import idempotent_producer
from outbox.edges.kafka.consumers.topics import Topics
from outbox.operations import replays
from outbox.operations.positions import PositionRefused, positions_of
from outbox.operations.replays import ReplayRefused, ReplayRequest
from tests.support.topics import create_topic


@pytest.fixture
def scene(transactional_db, bootstrap_servers, settings):
    """A topic with 20 messages in partition 0 and none in partition 1; the consumer has handled 10."""
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM outbox_replay")  # of other tests
    settings.OUTBOX = {**settings.OUTBOX, "BOOTSTRAP_SERVERS": bootstrap_servers}
    topic, name = create_topic(bootstrap_servers, 2), f"shop.{uuid.uuid4().hex[:8]}"
    producer = idempotent_producer({"bootstrap.servers": bootstrap_servers})
    for at in range(20):
        producer.produce(topic, str(at), partition=0)
    assert producer.flush(30) == 0
    positions = positions_of(conf.current())
    topic_id = Topics(conf.current().kafka.client_properties, "none").ids([topic])[topic]
    positions.create(connection, name, {Partition(topic, n): Position(at, topic_id) for n, at in ((0, 10), (1, 0))})
    return topic, replays.Target(name, "default", topic.__eq__)


def begun(scene, first, end=None, **given):
    topic, target = scene
    request = {name: given.pop(name) for name in ("partition", "stashes") if name in given}
    asked = ReplayRequest(topic, str(first), None if end is None else str(end), **request)
    return replays.begun(conf.current(), target, asked, actor="ann", **given)


def test_a_replay_is_begun_once_continued_and_cancelled(scene):
    topic, target = scene
    dry, _ = begun(scene, "earliest", dry_run=True)
    assert (dry.id, dry.spans) == (0, {Partition(topic, 0): range(10)})
    found, is_new = begun(scene, "earliest", reason="an error in the function")
    assert (found.spans, is_new) == (dry.spans, True)
    assert positions_of(conf.current()).everything(connection, found.name) == found.begins
    assert begun(scene, "earliest") == (found, False)
    [listed] = replays.left(conf.current(), "default", target.name)
    assert listed == replays.OpenReplay(found, {Partition(topic, 0): 10})
    for asked in (("5",), ("earliest", "8")):
        with pytest.raises(ReplayRefused, match=f"Replay {found.id} .* has not ended.*--from earliest. .*--cancel"):
            begun(scene, *asked)
    with pytest.raises(ReplayRefused, match="has not ended"):
        begun(scene, "earliest", stashes=True)
    assert replays.cancelled(conf.current(), target, topic, actor="ann") == found
    assert positions_of(conf.current()).everything(connection, found.name) == {}
    with pytest.raises(ReplayRefused, match="has no replay in"):
        replays.cancelled(conf.current(), target, topic, actor="ann")
    assert not replays.ended(conf.current(), "default", found)


def test_a_range_that_was_replayed_needs_a_word_more(scene):
    found, _ = begun(scene, 0, 5, partition=0)
    assert replays.ended(conf.current(), "default", found)
    with pytest.raises(ReplayRefused, match=f"Replay {found.id} with the same arguments ended at .*Add --again"):
        begun(scene, 0, 5, partition=0)
    again, is_new = begun(scene, 0, 5, partition=0, is_again=True)
    assert is_new
    assert again.id > found.id


def test_what_cannot_be_replayed_is_refused_and_nothing_is_written(scene):
    topic, target = scene
    for asked, said in (
        (("0", "11"), "has handled .* up to the offset 10, and --to is 11"),
        (("0", "5"), r"\[1\] up to the offset 0, and --to is 5"),
        (("10",), "The range has no offset"),
        (("latest",), "--from 'latest' is not an offset, earliest or an ISO time"),
        (("0", "latest"), "--to 'latest' is not an offset or an ISO time"),
        (("2999-01-01T00:00Z",), "--from .* is in the future"),
    ):
        with pytest.raises((PositionRefused, ReplayRefused), match=said):
            begun(scene, *asked)
    with pytest.raises(PositionRefused, match="has the partitions 0 to 1, and not 2"):
        begun(scene, 0, partition=2)
    with pytest.raises(ReplayRefused, match="does not handle the topic 'other'"):
        begun(("other", target), 0)
    with transaction.atomic():
        positions_of(conf.current()).replace(connection, target.name, {Partition(topic, 0): Position(10, "before")})
    with pytest.raises(PositionRefused, match="was created again"):
        begun(scene, 0)
    assert replays.left(conf.current(), "default", target.name) == []


def test_a_time_behind_the_position_ends_at_the_position(scene):
    topic, _ = scene
    time.sleep(0.01)
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    found, _ = begun(scene, 3, now, partition=0)
    assert found.spans[Partition(topic, 0)].stop <= 10


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nobody", "--topic", "t", "--from", "0"], "No consumer is called nobody. Known consumers:"),
        (["{name}"], "needs --topic and --from"),
        (["{name}", "--cancel"], "--cancel needs --topic"),
        (["--topic", "t"], "need the NAME of a consumer"),
        (["{name}", "--topic", "t", "--from", "0", "--threads", "0"], "--threads 0 is less than 1"),
        (["{name}", "--topic", "t", "--from", "0", "--stash"], "sends them to Kafka. Add --yes to confirm it"),
    ],
)
def test_wrong_arguments_end_the_command_with_2(scene, monkeypatch, arguments, said):
    monkeypatch.setattr(registry, "_consumers", {})
    topic, target = scene
    registry.consumer(topic, name=target.name)(lambda message: None)
    monkeypatch.setattr("sys.stdin", StringIO())
    with pytest.raises(CommandError, match=said) as raised:
        call_command("outbox_replay", *(one.format(name=target.name) for one in arguments))
    assert raised.value.returncode == 2


def test_the_command_lists_shows_and_cancels(scene, monkeypatch, capsys):
    monkeypatch.setattr(registry, "_consumers", {})
    topic, target = scene
    registry.consumer(topic, name=target.name)(lambda message: None)
    command = [target.name, "--topic", topic, "--from", "earliest"]
    call_command("outbox_replay", *command, "--dry-run")
    assert f"The replay would handle {topic}[0] from 0 to before 10" in capsys.readouterr().out
    found, _ = begun(scene, "earliest")
    call_command("outbox_replay")
    expected = f"Replay {found.id}: 10 offsets are left: outbox_replay {' '.join(command)}\n"
    assert capsys.readouterr().out == expected
    call_command("outbox_replay", "--json")
    [listed] = json.loads(capsys.readouterr().out)["replays"]
    assert listed["partitions"] == [{"partition": 0, "from": 0, "to": 10, "left": 10}]
    call_command("outbox_replay", target.name, "--topic", topic, "--cancel", "--json")
    assert json.loads(capsys.readouterr().out) == {"cancelled": found.id}
    call_command("outbox_replay")
    assert capsys.readouterr().out == "Every replay has ended.\n"
