"""Which stores are left out after a failure, and for how long."""

from outbox.core.journal.health import PAUSES_S, StoreHealth


def test_a_store_that_failed_is_left_out_for_a_growing_while():
    health, now = StoreHealth(), 0.0
    for pause_s in (*PAUSES_S, PAUSES_S[-1]):
        health.failed("a", "full", now, 0.5)
        assert health.errors("ab", now + pause_s * 0.99) == {"a": "full"}
        now += pause_s * 1.01
        assert health.errors("ab", now) == {}


def test_one_success_ends_it():
    health = StoreHealth()
    for _ in range(5):
        health.failed("a", "full", 0.0, 0.5)
    health.worked("a")
    assert health.errors("a", 0.0) == {}
    health.failed("a", "full", 0.0, 0.5)
    assert health.errors("a", PAUSES_S[0] * 1.01) == {}


def test_processes_do_not_come_back_all_at_once():
    until = []
    for chance in (0.0, 1.0):
        health = StoreHealth()
        health.failed("a", "full", 0.0, chance)
        until.append(bool(health.errors("a", PAUSES_S[0])))
    assert until == [False, True]
