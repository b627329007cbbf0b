"""`manage.py outbox_replay` on a real PostgreSQL and a real Kafka, in processes that are killed."""

import signal
from collections import Counter

import pytest

from tests.consumers.acts import POINTS
from tests.consumers.conftest import wait_until

pytestmark = pytest.mark.slow

KILLED_AT = [point for point in POINTS if point not in ("batch-holding", "batch-releasing")]
KEPT = {
    "positions": "SELECT topic, partition, next, topic_id FROM outbox_position WHERE consumer !~ '#' ORDER BY 1, 2",
    "held messages": 'SELECT id, "offset", reason, attempts, wanted FROM outbox_held ORDER BY id',
    "ids": "SELECT consumer, topic, id FROM outbox_seen ORDER BY 1, 2, 3",
    "records": "SELECT id FROM outbox ORDER BY id",
}


def kept(scene):
    return {name: scene.query(text) for name, text in KEPT.items()}


def handled_again(scene, consumer="shop.record"):
    """Each message that was handled before, once, and each key in its order."""
    before, replayed = scene.effects(consumer), scene.effects(f"{consumer} replay")
    assert Counter(value for _, value, _ in replayed) == Counter(value for _, value, _ in before)
    for key in {key for key, _, _ in replayed}:
        offsets = [offset for found, _, offset in replayed if found == key]
        assert offsets == sorted(offsets)


def test_a_replay_that_is_killed_at_every_point_goes_on_and_keeps_all_that_is_not_an_effect(scene):
    """Beside a process that consumes new messages."""
    scene.environment |= {"SHOP_ON_ERROR": "hold", "SHOP_BATCH": "5", "SHOP_ATTEMPTS": "1"}
    scene.produce(200, keys=20)
    scene.produce_held(3)
    assert scene.consume("--once", "shop.record").wait() == 4
    assert len(scene.effects()) == 203
    before = kept(scene)
    assert len(before["held messages"]) == 3
    for point in KILLED_AT:
        killed = scene.replay("earliest", failpoints=f"{point}=kill@7")
        assert killed.wait() == -signal.SIGKILL, killed.text()
    assert 0 < len(scene.effects("shop.record replay")) < 203
    refused = scene.replay("0", "--to", "10")
    assert refused.wait() == 1, refused.text()
    assert f"outbox_replay shop.record --topic {scene.topic} --from earliest" in refused.text()
    assert kept(scene) == before
    listed = scene.command("outbox_replay")
    assert f"offsets are left: outbox_replay shop.record --topic {scene.topic} --from earliest" in listed.stdout
    live = scene.consume("shop.record")
    done = scene.replay("earliest")
    scene.produce(40)
    assert done.wait() == 0, done.text()
    handled = {value for _, value, _ in scene.effects("shop.record replay")}
    assert len(handled) == 203
    scene.wait_for(243)
    assert live.stop() == 0
    new = [value for _, value, _ in scene.effects() if value not in handled]
    scene.query("DELETE FROM shop_effect WHERE value = ANY (%s)", new)
    handled_again(scene)
    after = kept(scene)
    assert after["held messages"] == before["held messages"]
    assert len(after["records"]) == len(before["records"]) + 40, "stash() did nothing in the replay"
    assert sum(next for _, _, next, _ in after["positions"]) == sum(next for _, _, next, _ in before["positions"]) + 40
    for table in ("outbox_position", "outbox_owner", "outbox_partition"):
        assert scene.query(f"SELECT count(*) FROM {table} WHERE consumer ~ '#'") == [(0,)]
    again = scene.replay("earliest")
    assert again.wait() == 1
    assert "Add --again" in again.text()


def test_a_replay_stops_at_a_message_that_fails_and_stashes_if_it_is_asked_to(scene):
    scene.produce(60)
    scene.once()
    failing = scene.replay("earliest", "--stash", "--yes", SHOP_FAILS="20")
    assert failing.wait() == 4, failing.text()
    assert "Cancel the replay with --cancel" in failing.text()
    assert "outbox_positions" not in failing.text()
    # One that hangs is stopped, and goes on too.
    stopped = scene.replay("earliest", "--stash", "--yes", failpoints="batch-begun=stop@1")
    wait_until(lambda: stopped.stands_still, 60, "it stands still")
    stopped.kill()
    done = scene.replay("earliest", "--stash", "--yes")
    assert done.wait() == 0, done.text()
    handled_again(scene)
    orders = scene.query("SELECT kafka_value::jsonb->>'order' FROM outbox WHERE kafka_topic = 'receipts'")
    assert sorted(Counter(order for (order,) in orders).values()) == [2] * 60
    assert scene.query("SELECT what FROM outbox_audit_log") == [("replay",)]


def test_a_function_of_lists_handles_a_part_of_the_messages_once_more(scene):
    scene.produce(90)
    scene.once("shop.many")
    before = kept(scene)
    done = scene.replay("5", "--to", "15", "--partition", "1", "--threads", "2", consumer="shop.many")
    assert done.wait() == 0, done.text()
    assert "Replay 1 has ended: handled 10" in done.text()
    replayed = scene.query("SELECT DISTINCT partition, \"offset\" FROM shop_effect WHERE consumer = 'shop.many replay'")
    assert sorted(replayed) == [(1, offset) for offset in range(5, 15)]
    assert len(scene.effects("shop.many replay")) == 10
    assert kept(scene) == before


def test_a_replay_has_ids_of_its_own_is_stopped_and_ends_when_it_is_cancelled(scene):
    """A repeated message is left out again, and messages are not left out because they were handled before."""
    scene.produce(100)
    sent, scene.sent = scene.sent, 0
    scene.produce(sent)
    scene.once("shop.deduped")
    before = kept(scene)
    given = {"consumer": "shop.deduped", "failpoints": "batch-committed=sleep:2"}
    slow = scene.replay("earliest", **given)
    wait_until(lambda: scene.effects("shop.deduped replay"), 60, "it replays")
    assert slow.stop() == 4, slow.text()
    assert "Replay 1 was stopped before its end. Run the same command once more" in slow.text()
    handled = len(scene.effects("shop.deduped replay"))
    slow = scene.replay("earliest", **given)
    wait_until(lambda: len(scene.effects("shop.deduped replay")) > handled, 60, "it goes on")
    cancelled = scene.command("outbox_replay", "shop.deduped", "--topic", scene.topic, "--cancel")
    assert cancelled.returncode == 0, cancelled.stderr
    assert slow.wait() == 1, slow.text()
    assert "Replay 1 was cancelled" in slow.text()
    scene.query("DELETE FROM shop_effect WHERE consumer = 'shop.deduped replay'")
    done = scene.replay("earliest", "--again", consumer="shop.deduped")
    assert done.wait() == 0, done.text()
    handled_again(scene, "shop.deduped")
    assert kept(scene) == before
