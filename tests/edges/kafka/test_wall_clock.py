"""What tells that the wall clock was set back. What follows is tested in tests/harvest/test_clock.py."""

from outbox.edges.kafka.common.wall_clock import WallClock


def test_only_a_clock_that_was_set_back_is_told_once():
    now = {"wall": 1000.0, "monotonic": 5.0}
    clock = WallClock(lambda: now["wall"], lambda: now["monotonic"])

    def after(wall_s, monotonic_s=1.0):
        now["wall"] += wall_s
        now["monotonic"] += monotonic_s
        return clock.set_back_s()

    assert after(1.0) == 0  # nobody has set it
    assert after(7201.0) == 0  # ahead
    assert after(-7199.0) == 7200
    assert after(1.0) == 0
    assert after(0.9) == 0  # slowed down
    assert after(30.0, 30.0) == 0  # the process was paused
