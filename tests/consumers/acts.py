"""Faults that the short and the long form of a test share. Each takes a scene."""

import os
import signal
import time
from contextlib import contextmanager

from outbox import failpoints
from tests.consumers.conftest import wait_until
from tests.consumers.shop import deeds
from tests.support.topics import create_topic

POINTS = [name for name, text in failpoints.FAILPOINTS.items() if text.startswith("consumers: ")]
_CONSUMERS = "datname = current_database() AND application_name LIKE 'outbox consumer%%'"


def rebalance(scene, chance, *, turns, pause_s=2.0, count=300):
    """A process comes or goes again and again, and every third is killed at a random moment."""
    started = [scene.consume("shop.record", "--threads", "2")]
    for turn in range(turns):
        scene.produce(count)
        if turn % 2 == 0:
            started.append(scene.consume("shop.record", SHOP_BATCH=str(chance.choice([1, 5, 20]))))
        elif turn % 3 == 1:
            started.pop(chance.randrange(len(started))).kill()
        else:
            leaving = started.pop(0)
            assert leaving.stop() == 0, leaving.text()
        time.sleep(chance.uniform(0, 2 * pause_s))
    scene.wait_for(scene.sent)
    assert [one.stop() for one in started] == [0] * len(started)


# ---- a COMMIT that is under way


@contextmanager
def commit_is_slow(scene):
    """That of the next message waits before it takes effect."""
    scene.query(
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(3); RETURN NULL; END'"
    )
    scene.query(
        "CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON shop_effect DEFERRABLE INITIALLY DEFERRED "
        f"FOR EACH ROW WHEN (NEW.value = '{scene.sent}') EXECUTE FUNCTION slow()"
    )
    yield
    scene.query_when_it_answers("DROP FUNCTION slow CASCADE")


def hold_back_replies(scene):
    """A COMMIT that has taken effect waits for a copy that does not exist."""
    scene.query("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
    scene.query("SELECT pg_reload_conf()")


def send_replies(scene):
    """After the next start."""
    (scene.postgres.data / "postgresql.auto.conf").write_text("")


def commits(scene, waits_for):
    """The session of a consumer that waits so in COMMIT."""
    query = f"SELECT pid FROM pg_stat_activity WHERE {_CONSUMERS} AND query = 'COMMIT' AND wait_event = %s"
    [(pid,), *_] = wait_until(lambda: scene.query(query, waits_for), 60, "it commits")
    return pid


def kill_backend(pid):
    """PostgreSQL then ends every session, and recovers."""
    os.kill(pid, signal.SIGKILL)


# ---- a function that ends its process


class Ending:
    """A process of its own, on a topic of its own. The function does it with the message at this place of five."""

    _ENDED = "the function has ended the transaction itself"
    _EXPECTED = {
        deeds.commit: (1, _ENDED),
        deeds.roll_back: (1, _ENDED),
        deeds.ask_for_durability: (1, "Leave durable=True out"),
        deeds.leave: (1, "ends the process: SystemExit: 3"),
        deeds.abort: (-signal.SIGABRT, ""),
        deeds.read_no_memory: (-signal.SIGSEGV, ""),
        deeds.hang: (7, "function_overrun"),
    }

    def __init__(self, scene, deed, place):
        self._scene, self._deed, self._topic = scene, deed, create_topic(scene.servers)
        self.numbers = scene.fill(self._topic, 0, {place: deed.__name__})
        self._given = {"SHOP_TOPIC": self._topic, "OUTBOX_NAME": self._topic, "SHOP_TIMEOUT": "2"}
        self._process = scene.consume("shop.record", **self._given)
        self.doubled = self.numbers[: place + 1] if deed is deeds.commit else ()
        """What was before a raw COMMIT is stored."""

    def ends(self):
        """The position is where it was."""
        code, text = self._EXPECTED[self._deed]
        assert self._process.wait() == code, self._process.text()
        assert text in self._process.text()
        stored = self._scene.query("SELECT value::int FROM shop_effect WHERE topic = %s ORDER BY id", self._topic)
        assert [number for (number,) in stored] == [*self.doubled]
        assert self._scene.query("SELECT next FROM outbox_position WHERE topic = %s", self._topic) == [(0,)]

    def goes_on(self):
        self._scene.once(**self._given)
