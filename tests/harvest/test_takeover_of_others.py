"""Other at-least-once harvesters of this table layout take over from ours, and ours from them, without loss.

Order across a takeover needs one partitioner: librdkafka's default puts a key elsewhere than Java's and ours.
"""

from benchmarks.baseline_one_by_one import WINDOW, OneByOne
from tests.harvest.hosts import finish, wait_until
from tests.support.checker import Writer, judge


def another(bench):
    return OneByOne(bench.url, bench.servers, partitioner="murmur2_random")


def test_ours_goes_on_where_another_one_stopped(bench):
    log = Writer(bench.url, bench.topic, keys=50).write(300)
    with another(bench) as other:
        wait_until(lambda: other.purged > 200)
    assert bench.db.execute("SELECT count(*) FROM outbox WHERE leader_id IS NOT NULL").fetchone() != (0,)
    with bench.working():
        bench.wait_empty()
    judge([log], bench.read()).assert_kept(repeats_max=WINDOW)


def test_another_one_goes_on_where_ours_was_ended(bench):
    log = Writer(bench.url, bench.topic, keys=50).write(400)
    with bench.working(IN_FLIGHT_MAX=100, MARK_MAX=50) as host:
        wait_until(lambda: host.worker.statistics().delivered > 200)
        host.worker.abandon()
        assert host.worker.join(10)
    assert bench.db.execute("SELECT count(*) FROM outbox WHERE leader_id IS NOT NULL").fetchone() != (0,)
    with another(bench):
        bench.wait_empty(60)
    judge([log], bench.read()).assert_kept(repeats_max=100)


def test_they_take_turns_while_a_writer_goes_on(bench):
    with Writer(bench.url, bench.topic, keys=50, rate=1000) as writer:
        for _ in range(2):
            with bench.working(IN_FLIGHT_MAX=100) as host:
                wait_until(lambda host=host: host.worker.statistics().delivered > 200)
                finish(host)
            with another(bench) as other:
                wait_until(lambda other=other: other.purged > 200)
    with bench.working():
        bench.wait_empty()
    judge([writer.log], bench.read()).assert_kept(repeats_max=2 * WINDOW)
