"""The transaction around a consumer's functions, on a real PostgreSQL: what a function may do to it is found before the
COMMIT. `atomic()` alone is the control: it ends without an exception and stores nothing, or half."""

import asyncio
import gc
import os
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from contextlib import closing
from functools import partial

import psycopg
import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Group, User
from django.core.exceptions import ImproperlyConfigured
from django.db import Error, IntegrityError, OperationalError, connection, connections, transaction

import outbox
from outbox.consumers.work.calls import forget_frames
from outbox.core.consumers import blame
from outbox.core.consumers.holding import CAREFUL_MAX
from outbox.core.consumers.values import CommitInDoubt, Partition, Position
from outbox.edges.postgres.consumers.positions import Positions, application_name
from outbox.edges.postgres.consumers.transactions import Transaction
from outbox.exceptions import NotAvailable
from tests.support.databases import ROOT

ONE = Partition("orders", 0)
POSITIONS = Positions("outbox", session_timeout_s=1)


@pytest.fixture
def consumer(transactional_db):
    name = f"shop.{uuid.uuid4().hex[:8]}"
    POSITIONS.create(connection, name, {ONE: Position(5)})
    return name


@pytest.fixture
def around(consumer):
    found = Transaction("default", consumer=consumer, session_timeout_s=1)
    yield found
    found.close()


def effect(name="effect"):
    Group.objects.create(name=name)


def effects():
    return sorted(Group.objects.values_list("name", flat=True))


def execute(statement, *given):
    with connection.cursor() as cursor:
        cursor.execute(statement, given)
        return cursor.fetchall() if cursor.description else None


def position(consumer):
    return POSITIONS.load(connection, consumer, [ONE])[ONE].next


def run(around, consumer, function):
    """As the worker does it: what was wrong, and the hooks of a commit."""
    try:
        _, locked = POSITIONS.lock(around.begin(5), consumer, [ONE])
        effect("before")
        function()
        if problem := around.problem():
            around.rollback()
            return problem, []
        count, written = POSITIONS.write(connection, consumer, {ONE: (5, Position(6))})
        if (count, written) != (1, locked):
            around.rollback()
            return "another transaction", []
        return "", around.commit()
    except BaseException:
        around.rollback()
        raise


def is_untouched():
    """Nothing is left open for the next batch."""
    return not (connection.in_atomic_block or connection.savepoint_ids or connection.run_on_commit) and (
        connection.get_autocommit()
    )


def test_what_is_committed_is_there_with_the_position(around, consumer):
    assert run(around, consumer, partial(effect, "after")) == ("", [])
    assert (effects(), position(consumer)) == (["after", "before"], 6)
    assert is_untouched()


def test_what_is_raised_leaves_nothing(around, consumer):
    def fail():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        run(around, consumer, fail)
    assert (effects(), position(consumer)) == ([], 5)
    assert is_untouched()


# ---- what a function may do to its transaction


def swallow_an_error():
    try:
        execute("SELECT 1/0")
    except Error:
        pass


def swallow_an_error_of_a_block():
    try:
        with transaction.atomic(savepoint=False):
            effect("before")
    except IntegrityError:
        pass


def close():
    connection.close()


def close_and_fail():
    connection.close()
    raise ValueError("no")


def close_beneath_django():
    connection.connection.close()


def leave_a_block_open():
    transaction.atomic().__enter__()
    effect("in it")


def end_its_own_session():
    try:
        execute("SELECT pg_terminate_backend(pg_backend_pid())")
    except Error:
        pass


UNTRUSTED = {
    swallow_an_error: "caught and swallowed",
    swallow_an_error_of_a_block: r"caught and swallowed|set_rollback\(True\)",
    partial(transaction.set_rollback, True): r"set_rollback\(True\)",
    close: "was closed inside",
    close_beneath_django: "was lost inside",
    end_its_own_session: "was lost inside",
    leave_a_block_open: "entered and never left",
}


def named(function):
    return getattr(function, "__name__", "set_rollback")


@pytest.mark.parametrize(("function", "problem"), UNTRUSTED.items(), ids=map(named, UNTRUSTED))
def test_a_transaction_that_cannot_be_trusted_is_found(around, consumer, function, problem):
    found, hooks = run(around, consumer, function)
    assert re.search(problem, found), found
    assert hooks == []
    assert (effects(), position(consumer)) == ([], 5)
    assert is_untouched()
    assert run(around, consumer, effect) == ("", []), "the next batch is none the worse"
    assert (effects(), position(consumer)) == (["before", "effect"], 6)


@pytest.mark.parametrize("function", [swallow_an_error, partial(transaction.set_rollback, True), close], ids=named)
def test_atomic_alone_loses_it_without_a_word(transactional_db, function):
    """The control: were this to raise, nobody would have to look."""
    with transaction.atomic():
        effect("before")
        function()
    assert effects() == []


@pytest.mark.parametrize("statement", ["COMMIT", "ROLLBACK"])
@pytest.mark.parametrize("then", [lambda: None, partial(effect, "after")], ids=["last", "followed"])
def test_a_raw_end_of_the_transaction_is_found_by_its_id(around, consumer, statement, then):
    def function():
        execute(statement)
        then()

    assert run(around, consumer, function) == ("another transaction", [])
    assert effects() == (["before"] if statement == "COMMIT" else []), "nobody can undo a COMMIT"
    assert position(consumer) == 5
    assert is_untouched()


def fail_after(*statements, error="no"):
    def function():
        for statement in statements:
            execute(statement)
        if error == "no":
            raise ValueError(error)
        execute(error)

    return function


@pytest.mark.parametrize(
    ("function", "replaced"),
    [
        (fail_after("COMMIT"), True),
        (fail_after("COMMIT", "SELECT 1"), True),
        (fail_after("COMMIT", "SELECT pg_current_xact_id()"), True),
        (fail_after("COMMIT", error="SELECT 1/0"), True),
        (fail_after("COMMIT AND CHAIN", error="SELECT pg_terminate_backend(pg_backend_pid())"), True),
        (fail_after("ROLLBACK"), True),
        (fail_after("ROLLBACK", "SELECT pg_current_xact_id()", "COMMIT"), True),
        (fail_after(), False),
        (fail_after("SAVEPOINT s", "ROLLBACK TO s"), False),
        (fail_after(error="SELECT 1/0"), False),
        (fail_after(error="SELECT pg_terminate_backend(pg_backend_pid())"), False),
        (close_and_fail, False),
    ],
)
def test_a_raw_end_of_the_transaction_is_found_behind_an_error(around, consumer, function, replaced):
    _, xid = POSITIONS.lock(around.begin(5), consumer, [ONE])
    effect("before")
    with pytest.raises((ValueError, Error)):
        function()
    assert around.is_replaced(xid) is replaced
    assert effects() in ([], ["before"] if replaced else [])
    assert position(consumer) == 5
    assert is_untouched()


def test_no_answer_about_a_transaction_is_no_replacement(around, consumer):
    _, xid = POSITIONS.lock(around.begin(5), consumer, [ONE])
    around.rollback()
    assert not around.is_replaced(xid + 10**9), "a copy that lags does not know it"


def test_atomic_alone_commits_behind_a_raw_commit(transactional_db):
    with transaction.atomic():
        effect("before")
        execute("COMMIT")
        transaction.set_rollback(True)
    assert effects() == ["before"]


def test_a_savepoint_that_is_left_open_is_committed(around, consumer):
    def function():
        connection.savepoint()
        effect("in it")
        execute("SAVEPOINT raw")
        effect("in the other")

    assert run(around, consumer, function) == ("", [])
    assert (effects(), position(consumer)) == (["before", "in it", "in the other"], 6)


def test_an_error_within_a_block_of_the_function_harms_nothing(around, consumer):
    def function():
        with pytest.raises(IntegrityError), transaction.atomic():
            effect("before")

    assert run(around, consumer, function) == ("", [])
    assert (effects(), position(consumer)) == (["before"], 6)


def test_a_deferred_foreign_key_fails_in_commit_and_is_no_doubt(around, consumer):
    def function():
        LogEntry.objects.create(user_id=987654321, action_flag=1, object_repr="")

    with pytest.raises(psycopg.errors.ForeignKeyViolation) as raised:
        run(around, consumer, function)
    assert around.failure(raised.value).sqlstate == "23503"
    assert (effects(), position(consumer)) == ([], 5)
    assert is_untouched()


def test_a_durable_block_inside_is_refused_with_the_remedy(around, consumer):
    def function():
        with transaction.atomic(durable=True):
            effect("in it")

    with pytest.raises(RuntimeError) as raised:
        run(around, consumer, function)
    found = around.failure(raised.value)
    assert isinstance(found, blame.Alike)
    assert "Leave durable=True out" in found.remedy
    assert effects() == []


# ---- one message of several


def carefully(around, consumer, *functions):
    """As the worker does it in a careful batch: which of these failed, and with what."""
    failed = {}
    POSITIONS.lock(around.begin(5), consumer, [ONE])
    effect("before")
    for number, function in enumerate(functions):
        around.mark()
        try:
            effect(f"{number}")
            function()
            problem = around.keep()
        except Exception as error:
            problem = str(error)
        if problem:
            failed[number] = problem
            if not around.undo():
                return failed, None
    assert around.problem() == ""
    POSITIONS.write(connection, consumer, {ONE: (5, Position(6))})
    return failed, around.commit()


def works():
    """Nothing else."""


def refer_to_nobody():
    LogEntry.objects.create(user_id=987654321, action_flag=1, object_repr="")


def fail_in_a_block():
    with transaction.atomic():
        effect("in it")
        raise ValueError("no")


SURVIVED = [
    fail_after(),
    fail_after(error="SELECT 1/0"),
    swallow_an_error,
    swallow_an_error_of_a_block,
    partial(transaction.set_rollback, True),
    leave_a_block_open,
    refer_to_nobody,
    fail_in_a_block,
]


@pytest.mark.parametrize("function", SURVIVED, ids=map(named, SURVIVED))
def test_one_message_that_fails_leaves_the_others_of_its_transaction(around, consumer, function):
    failed, hooks = carefully(around, consumer, works, function, works, function, works)
    assert list(failed) == [1, 3]
    assert (effects(), position(consumer), hooks) == (["0", "2", "4", "before"], 6, [])
    assert is_untouched()


LOST = [close, close_beneath_django, fail_after("ROLLBACK"), fail_after("COMMIT"), close_and_fail]


@pytest.mark.parametrize("function", LOST, ids=map(named, LOST))
def test_one_message_that_ends_the_transaction_is_known(around, consumer, function):
    failed, hooks = carefully(around, consumer, works, function, works)
    assert (list(failed), hooks) == ([1], None)
    around.rollback()
    assert is_untouched()


def test_hooks_of_a_message_that_fails_do_not_run(around, consumer):
    ran = []

    def hook(name, function):
        def hooked():
            transaction.on_commit(lambda: ran.append(name))
            function()

        return hooked

    _, hooks = carefully(around, consumer, hook("a", works), hook("b", fail_after()), hook("c", works))
    for run_it in hooks:
        run_it()
    assert ran == ["a", "c"]


def test_a_deferred_constraint_that_holds_in_the_end_may_be_violated_meanwhile_by_each_message(around, consumer):
    """Messages that were checked must not make those of later ones immediate."""

    def child_before_parent():
        entry = LogEntry.objects.create(user_id=1_000_000, action_flag=1, object_repr="")
        user = User.objects.create(id=1_000_000, username="late")
        entry.delete()
        user.delete()

    failed, _ = carefully(around, consumer, child_before_parent, child_before_parent)
    assert failed == {}


def test_a_full_careful_transaction_stays_below_the_cache_of_subtransactions(around, consumer):
    failed, _ = carefully(around, consumer, *[works] * CAREFUL_MAX)
    assert (failed, len(effects())) == ({}, CAREFUL_MAX + 1)
    assert CAREFUL_MAX < 64


# ---- hooks


def test_hooks_are_taken_off_and_handed_over(around, consumer):
    """Django drops those behind one that raises, and raises in the caller although everything is committed."""
    ran = []

    def fail():
        ran.append("first")
        raise ValueError("no")

    def function():
        transaction.on_commit(fail)
        transaction.on_commit(lambda: ran.append("second"))
        with transaction.atomic():
            transaction.on_commit(lambda: ran.append("never"))
            transaction.set_rollback(True)

    problem, hooks = run(around, consumer, function)
    assert (problem, ran, len(hooks)) == ("", [], 2)
    assert position(consumer) == 6
    for hook in hooks:
        try:
            hook()
        except ValueError:
            pass
    assert ran == ["first", "second"]
    assert is_untouched()


def test_django_alone_drops_the_hooks_behind_one_that_raises(transactional_db):
    ran = []

    def fail():
        raise ValueError("no")

    def function():
        with transaction.atomic():
            transaction.on_commit(fail)
            transaction.on_commit(lambda: ran.append("second"))

    with pytest.raises(ValueError, match="no"):
        function()
    assert ran == []


def test_hooks_of_what_was_rolled_back_are_dropped(around, consumer):
    def function():
        transaction.on_commit(lambda: pytest.fail("it ran"))
        transaction.set_rollback(True)

    run(around, consumer, function)
    assert is_untouched()
    assert run(around, consumer, effect) == ("", [])


# ---- COMMIT


def lost_in_commit(around, consumer, monkeypatch, *, has_taken_effect):
    """The server's answer to COMMIT does not arrive: the session ends before it, or behind it."""
    commit = psycopg.Connection.commit

    def lose(session):
        if has_taken_effect:
            commit(session)
        with closing(psycopg.connect(**connection.get_connection_params(), autocommit=True)) as other:
            other.execute("SELECT pg_terminate_backend(%s, 5000)", [session.info.backend_pid])
        session.execute("SELECT 1")  # raises, and leaves the connection broken

    monkeypatch.setattr(psycopg.Connection, "commit", lose)
    with pytest.raises(CommitInDoubt) as raised:
        run(around, consumer, lambda: transaction.on_commit(effect))
    monkeypatch.undo()
    return raised.value


@pytest.mark.parametrize("has_taken_effect", [False, True])
def test_a_connection_lost_in_commit_is_a_doubt_that_the_row_settles(around, consumer, monkeypatch, has_taken_effect):
    doubt = lost_in_commit(around, consumer, monkeypatch, has_taken_effect=has_taken_effect)
    assert isinstance(around.failure(doubt), blame.Disconnected)
    assert [hook.__name__ for hook in doubt.hooks] == ["effect"]
    found = POSITIONS.settle(around.connection(), consumer, [ONE])
    assert found[ONE][0] == Position(6 if has_taken_effect else 5)
    assert effects() == (["before"] if has_taken_effect else [])
    assert is_untouched()


# ---- its limits


def setting(name):
    return execute("SELECT current_setting(%s)", name)[0][0]


def test_limits_are_those_of_the_transaction_alone(consumer):
    names = (
        "application_name", "statement_timeout", "idle_in_transaction_session_timeout", "lock_timeout",
        "synchronous_commit",
    )  # fmt: skip
    around = Transaction("default", consumer=consumer, durable=False, session_timeout_s=1)
    before = [setting(name) for name in names]
    around.begin(5)
    assert [setting(name) for name in names] == [application_name(consumer), "5s", "5s", "1s", "off"]
    POSITIONS.lock(connection, consumer, [ONE])
    assert setting("lock_timeout") == before[3], "the functions may wait for locks"
    around.rollback()
    assert [setting(name) for name in names] == before
    durable = Transaction("default", consumer=consumer, session_timeout_s=1)
    durable.begin(5)
    assert setting("synchronous_commit") == before[4]
    durable.close()


def test_a_lock_of_the_positions_is_not_waited_for_without_end(around, consumer):
    with psycopg.connect(**connection.get_connection_params()) as other:
        other.execute("SELECT FROM outbox_position WHERE consumer = %s FOR UPDATE", [consumer])
        began = time.monotonic()
        with pytest.raises(OperationalError) as raised:
            run(around, consumer, effect)
        assert 0.8 < time.monotonic() - began < 5
    assert around.failure(raised.value).sqlstate == "55P03"
    assert is_untouched()


def test_a_statement_is_ended_in_time_and_cancelled_from_another_thread(consumer):
    around = Transaction("default", consumer=consumer, session_timeout_s=1)
    for limit, timer in ((0.3, None), (60, threading.Timer(0.5, around.cancel))):
        around.begin(limit)
        if timer:
            timer.start()
        began = time.monotonic()
        with pytest.raises(OperationalError) as raised:
            execute("SELECT pg_sleep(30)")
        assert time.monotonic() - began < 10
        assert around.failure(raised.value).sqlstate == "57014"
        around.rollback()
        assert is_untouched()
    around.cancel()  # with nothing to cancel
    around.close()


HOLDING = """
import sys, time, django
django.setup()
from django.contrib.auth.models import Group, User
from django.db import connection
from outbox.core.consumers.values import Partition, Position
from outbox.edges.postgres.consumers.positions import Positions
from outbox.edges.postgres.consumers.transactions import Transaction
consumer, url = sys.argv[1:]
positions, one = Positions("outbox", session_timeout_s=1), Partition("orders", 0)
around = Transaction("default", consumer=consumer, session_timeout_s=1)
_, locked = positions.lock(around.begin(60), consumer, [one])
Group.objects.create(name="of the one that stands still")
print("holding", flush=True)
sys.stdin.readline()
try:
    print(positions.write(connection, consumer, {one: (5, Position(6))})[1] == locked)
    around.commit()
    print("committed")
except Exception as error:
    print(around.failure(error))
"""


def test_an_owner_that_stands_still_behind_its_locks_is_ended_by_its_successor(around, consumer):
    params = connection.settings_dict
    address = f"postgresql://{params['USER']}:{params['PASSWORD']}@{params['HOST']}:{params['PORT']}/{params['NAME']}"
    owner = subprocess.Popen(
        [sys.executable, "-c", HOLDING, consumer, address],
        cwd=ROOT,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings", "DATABASE_URL": address},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert owner.stdout.readline() == "holding\n"
        owner.send_signal(signal.SIGSTOP)
        with pytest.raises(OperationalError):
            run(around, consumer, effect)
        assert POSITIONS.unblock(around.connection(), consumer, [ONE]) == 1
        assert run(around, consumer, effect) == ("", [])
        owner.send_signal(signal.SIGCONT)
        said, _ = owner.communicate("go on\n", timeout=20)
        assert "committed" not in said
        assert "57P01" in said or "Disconnected" in said
    finally:
        owner.kill()
        owner.communicate()
    assert (effects(), position(consumer)) == (["before", "effect"], 6)


# ---- failures as values


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (SystemExit(3), blame.Ending),
        (KeyboardInterrupt(), blame.Ending),
        (MemoryError(), blame.Ending),
        (NotAvailable("no broker"), blame.KafkaUnavailable),
        (ImportError("no module"), blame.Alike),
        (ImproperlyConfigured("no"), blame.Alike),
        (RuntimeError("something else"), blame.FunctionRaised),
        (ValueError("no"), blame.FunctionRaised),
        (IntegrityError("of Django's own"), blame.FunctionRaised),
        (transaction.TransactionManagementError("no"), blame.FunctionRaised),
        (psycopg.OperationalError("server closed the connection"), blame.Disconnected),
        (psycopg.InterfaceError("the connection is closed"), blame.Disconnected),
        (psycopg.errors.DeadlockDetected("no"), blame.StatementRefused),
        (psycopg.DataError("text fields cannot contain NUL"), blame.FunctionRaised),
    ],
)
def test_what_is_raised_becomes_a_value(error, kind):
    found = Transaction("default", consumer="shop.record", session_timeout_s=1).failure(error)
    assert isinstance(found, kind)
    assert type(error).__name__ in found.text


def use_a_closed_cursor():
    cursor = connection.cursor()
    cursor.close()
    cursor.execute("SELECT 1")


def ask_another_server():
    psycopg.connect("postgresql://x@127.0.0.1:1/x")


def lose_another_session():
    with psycopg.connect(**connection.get_connection_params(), autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(pg_backend_pid())")


def call_another_broker():
    raise NotAvailable("no broker")


def close_its_session_and_ask():
    connection.connection.close()
    execute("SELECT 1")


def lose_its_session():
    execute("SELECT pg_terminate_backend(pg_backend_pid())")


def lose_its_session_within_a_block():
    with transaction.atomic():
        lose_its_session()


ATTEMPT = blame.BatchAttempt(1)


@pytest.mark.parametrize(
    ("function", "action"),
    [
        (use_a_closed_cursor, blame.MessageFailed),
        (ask_another_server, blame.MessageFailed),
        (lose_another_session, blame.MessageFailed),
        (call_another_broker, blame.MessageFailed),
        (close_its_session_and_ask, blame.MessageFailed),
        (lose_its_session, blame.Wait),
        (lose_its_session_within_a_block, blame.Wait),
    ],
)
def test_an_outage_is_one_of_the_transactions_own_session(around, consumer, function, action):
    """The consumer would wait without end for what only the function can mend."""
    POSITIONS.lock(around.begin(5), consumer, [ONE])
    with pytest.raises((Error, psycopg.Error, NotAvailable)) as raised:
        function()
    found = around.failure(raised.value, is_of_function=True)
    assert isinstance(blame.blame(ATTEMPT, found), action), found
    around.rollback()
    if action is blame.MessageFailed:
        outage = around.failure(raised.value)
        assert isinstance(blame.blame(ATTEMPT, outage), blame.Wait), "where no function has run"


def test_an_alias_that_is_not_there_and_an_outbox_in_another_transaction_have_a_remedy(around, consumer):
    with pytest.raises(Exception, match="doesn't exist") as raised:
        connections["nowhere"].cursor()
    assert "DATABASES" in around.failure(raised.value).remedy
    with pytest.raises(outbox.exceptions.StashOutsideTransaction) as raised:
        outbox.stash("receipts", "v")
    assert isinstance(around.failure(raised.value), blame.Alike)


def test_a_server_that_is_gone_is_a_lost_connection(around, consumer):
    connection.close()
    connection.settings_dict["PORT"], port = "1", connection.settings_dict["PORT"]
    try:
        with pytest.raises(OperationalError) as raised:
            around.begin(5)
    finally:
        connection.settings_dict["PORT"] = port
    assert isinstance(around.failure(raised.value), blame.Disconnected)
    assert is_untouched()
    assert run(around, consumer, effect) == ("", [])


class Unreadable(Exception):
    def __str__(self):
        raise ValueError("no text")


def test_errors_that_are_hard_to_read_are_failures_of_the_message(around, consumer):
    assert around.failure(Unreadable()) == blame.FunctionRaised("Unreadable: its text cannot be read (ValueError)")
    assert isinstance(around.failure(asyncio.CancelledError()), blame.FunctionRaised)
    assert isinstance(around.failure(SystemExit()), blame.Ending)


def test_a_cursor_of_the_server_that_a_local_variable_holds_harms_no_other_message(around, consumer):
    def function():
        found = Group.objects.iterator(chunk_size=1)
        next(found)
        raise ValueError("no")

    POSITIONS.lock(around.begin(5), consumer, [ONE])
    effect("before")
    for _ in range(2):
        around.mark()
        try:
            function()
        except ValueError as error:
            forget_frames(error)
            assert around.undo()
    gc.collect()
    assert around.problem() == ""
    POSITIONS.write(connection, consumer, {ONE: (5, Position(6))})
    around.commit()
    assert effects() == ["before"]
