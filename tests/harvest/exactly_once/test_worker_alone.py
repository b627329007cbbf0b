"""The exactly-once worker without servers: what becomes of a lane whose worker cannot be made completely."""

import threading
import uuid
from types import SimpleNamespace

from outbox.conf import EXACTLY_ONCE, parse
from outbox.harvest.exactly_once import lane as exactly_once
from outbox.harvest.exactly_once.lane import ExactlyOnce
from outbox.runtime.threads import THREADS


def test_a_worker_that_could_not_be_made_leaves_its_rounds_and_answers_the_host(monkeypatch):
    asked, told = threading.Event(), []

    def fail(*given):
        assert asked.wait(5.0)
        raise MemoryError

    monkeypatch.setattr(exactly_once, "LaneCount", fail)
    conf = parse({"BOOTSTRAP_SERVERS": "localhost:9092", "DELIVERY": EXACTLY_ONCE})
    host = SimpleNamespace(
        fatal=lambda error: told.append(type(error)), finished=lambda lane: told.append(f"finished {lane}")
    )
    rounds = SimpleNamespace(
        servers=SimpleNamespace(runtime=THREADS, database=SimpleNamespace(), kafka=None),
        purges=None,
        is_closing=False,
        leave=lambda lane, *, is_settled: told.append(f"left {lane.number} {is_settled}"),
    )
    worker = ExactlyOnce(conf, 3, uuid.uuid4(), host, lambda state: rounds, THREADS)
    worker.start()
    worker.finish(THREADS.monotonic() + 60.0)
    asked.set()
    assert worker.join(5.0)
    assert told == [MemoryError, "left 3 True", "finished 3"]
