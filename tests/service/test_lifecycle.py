"""A daemon that has nothing to do, through its life."""

import logging
import threading
from functools import partial

import pytest

from outbox.exceptions import NotAvailable, OutboxError
from outbox.service.lifecycle import Daemon, State, StopOutOfTime

TIMEOUT_S = 20.0


class Idle(Daemon):
    def __init__(self, work=lambda daemon: daemon._stopping.wait(), **given):
        super().__init__("idler", thread="idler", logger=logging.getLogger("outbox.harvest"), **given)
        self.told, self.work = [], work
        self.tear_down = lambda: None

    def _work(self):
        self.told.append("work")
        self.work(self)

    def _tear_down(self):
        self.told.append("tear down")
        self.tear_down()

    def _abandon(self):
        self.told.append("abandon")

    def _log_state(self, state):
        self.told.append(state)

    def _log_failure(self, error):
        self.told.append(error)


def test_it_works_until_it_is_stopped_and_then_tears_down():
    one = Idle()
    assert one.state is State.CREATED
    with one:
        assert one.state is State.RUNNING
        assert one.wait(0) is False
    assert one.state is State.STOPPED
    assert one.told == [State.RUNNING, "work", State.STOPPING, "tear down", State.STOPPED]


def test_it_is_started_once():
    with Idle() as one, pytest.raises(OutboxError, match=r"This idler is running\. It can be started only once"):
        one.start()
    assert one.start().state is State.STOPPED


def test_stopped_before_its_start_it_never_works():
    one = Idle()
    one.stop()
    one.start()
    assert one.wait(0)
    assert one.state is State.STOPPED
    assert not one.told


def test_a_forced_stop_abandons_what_is_in_hand():
    one = Idle().start()
    one.stop()
    assert "abandon" not in one.told
    one.stop(force=True)
    assert one.wait(TIMEOUT_S)
    assert one.told.count("abandon") == 1


def test_wait_raises_the_first_failure_which_alone_is_logged():
    def work(daemon):
        daemon.fail(KeyError("first"))
        raise ValueError("second")

    def broken():
        raise ValueError("third")

    one = Idle(work)
    one.tear_down = broken
    with pytest.raises(KeyError, match="first"):
        one.start().wait(TIMEOUT_S)
    assert [type(told) for told in one.told if isinstance(told, Exception)] == [KeyError]
    assert one.told[-1] is State.STOPPED


def test_an_error_of_the_block_counts_more_than_its_own():
    one = Idle(lambda daemon: daemon.fail(ValueError("its own")))
    with pytest.raises(KeyError, match="mine"), one:
        raise KeyError("mine")
    assert isinstance(one._error, ValueError)


@pytest.mark.parametrize("force", [False, True])
def test_what_a_stop_leaves_behind_is_raised_unless_it_was_forced(force):
    one = Idle().start()
    one._fail_unless_forced(StopOutOfTime("while it runs"))
    one.tear_down = lambda: one._fail_unless_forced(StopOutOfTime("left behind"))
    one.stop(force=force)
    if force:
        assert one.wait(TIMEOUT_S)
    else:
        with pytest.raises(StopOutOfTime, match="left behind"):
            one.wait(TIMEOUT_S)


def test_it_waits_for_what_is_not_there_and_says_what(caplog):
    attempts, is_told = [], threading.Event()

    def attempt(daemon):
        attempts.append(daemon.waiting_for)
        if len(attempts) < 3:
            raise NotAvailable("the server is away")
        return 7

    def work(daemon):
        assert daemon._until_available(partial(attempt, daemon)) == 7
        is_told.set()
        daemon._stopping.wait()

    with caplog.at_level(logging.INFO, "outbox"), Idle(work) as one:
        assert is_told.wait(TIMEOUT_S)
    assert attempts == ["", "the server is away", "the server is away"]
    assert one.waiting_for == ""
    assert caplog.messages == ["waiting reason='the server is away'", "waiting_over"]


def test_other_errors_are_no_reason_to_wait():
    def refused():
        raise OutboxError("refused")

    with pytest.raises(OutboxError, match="refused"):
        Idle(lambda daemon: daemon._until_available(refused)).start().wait(TIMEOUT_S)


def test_it_fails_at_once_where_that_is_asked_for_and_stops_waiting_when_it_is_stopped():
    def away():
        raise NotAvailable("away")

    with pytest.raises(NotAvailable):
        Idle(lambda daemon: daemon._until_available(away), fail_fast=True).start().wait(TIMEOUT_S)
    found = []
    one = Idle(lambda daemon: found.append(daemon._until_available(away))).start()
    one.stop()
    assert one.wait(TIMEOUT_S)
    assert found == [None]
