"""stash() and stash_many() on a real PostgreSQL: what arrives in the table, and in whose transaction."""

import asyncio
import gc
import threading
import uuid

import pytest
from django.core.exceptions import SynchronousOnlyOperation
from django.db import DataError, ProgrammingError, connection, connections, transaction
from django.test import TestCase

import outbox
from outbox import Message, api
from outbox.exceptions import InvalidMessage, OutboxError, StashOutsideTransaction
from outbox.models import OutboxRecord

pytestmark = pytest.mark.django_db

TRICKY = [
    "",
    "plain",
    "tab\there",
    "line\nbreak",
    "carriage\rreturn",
    'quote"',
    "back\\slash",
    "\\N",
    "\\.",
    "{a,b}",
    "NULL",
    "Zoë 😀",
    "'",
]


@pytest.fixture
def settings_of_outbox(settings):
    def change(**changes):
        settings.OUTBOX = {**settings.OUTBOX, **changes}

    return change


def stored(using="default"):
    columns = (
        "kafka_topic",
        "kafka_key",
        "kafka_value",
        "kafka_value_binary",
        "kafka_header_keys",
        "kafka_header_values",
    )
    rows = OutboxRecord.objects.using(using).order_by("id").values_list("id", *columns)
    return [tuple(bytes(x) if isinstance(x, memoryview) else x for x in row) for row in rows]


# --- what arrives ---


def test_stash_writes_one_row_and_returns_its_id():
    id = outbox.stash("heroes", {"name": "Ada"}, key="7", headers=[("a", "1"), ("a", "2")], message_id="m")
    assert stored() == [(id, "heroes", "7", '{"name":"Ada"}', None, ["a", "a", "message-id"], ["1", "2", "m"])]
    record = OutboxRecord.objects.get()
    assert record.leader_id is None
    assert record.create_time is not None


def test_stash_is_one_query(django_assert_num_queries):
    with django_assert_num_queries(1):
        outbox.stash("heroes", "v", key="k", ordered=True)


def test_tombstones_and_empty_texts_differ(settings_of_outbox):
    settings_of_outbox(MESSAGE_ID_HEADER=None)
    outbox.stash("heroes", key="k")
    outbox.stash("heroes", "")
    outbox.stash("heroes", b"")
    assert [row[2:] for row in stored()] == [
        ("k", None, None, [], []),
        ("", "", None, [], []),
        ("", None, b"", [], []),
    ]


def tricky_messages():
    for text in TRICKY:
        yield Message("heroes", text, key=text, headers=[(text or "name", text), ("second", text)], message_id="m")
        yield Message("heroes", {"text": text}, headers={"a": text}, correlation_id="c")
        yield Message("heroes", text.encode() + b"\0\xff\\", message_id="m")
        yield Message("heroes", message_id="m")


@pytest.mark.part
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("insert_rows_max", [1_000, 0], ids=["insert", "copy"])
def test_stash_many_stores_what_stash_stores(monkeypatch, settings_of_outbox, insert_rows_max, ordered):
    settings_of_outbox(CORRELATION_ID_HEADER="correlation")
    monkeypatch.setattr(api, "INSERT_ROWS_MAX", insert_rows_max)
    messages = [message for message in tricky_messages() if message.key or not ordered]
    for message in messages:
        fields = ("key", "headers", "message_id", "correlation_id")
        outbox.stash(message.topic, message.value, **{name: getattr(message, name) for name in fields})
    one_by_one = stored()
    ids = outbox.stash_many(messages, ordered=ordered)
    at_once = stored()[len(one_by_one) :]
    assert [row[0] for row in at_once] == ids
    assert without_message_ids(at_once) == without_message_ids(one_by_one)


def without_message_ids(rows):
    """Rows without ids; random message ids are replaced, and their form is checked."""
    plain = []
    for _, *columns, names, values in rows:
        at = names.index("message-id")
        if values[at] != "m":
            assert uuid.UUID(values[at]).version == 4
        plain.append((*columns, names, [value for n, value in enumerate(values) if n != at]))
    return plain


@pytest.mark.parametrize("count", [1, 2, 250, 251, 1_101, 2_500])
def test_ids_come_in_the_order_of_the_messages(monkeypatch, count):
    monkeypatch.setattr(api, "CHUNK_ROWS", 1_100)
    ids = outbox.stash_many(Message("heroes", str(n)) for n in range(count))
    assert len(ids) == count
    assert [(row[0], row[3]) for row in stored()] == [(id, str(n)) for n, id in enumerate(ids)]


def test_nothing_to_stash():
    assert outbox.stash_many([]) == []
    assert outbox.stash_many(iter(()), ordered=True) == []
    assert stored() == []


def test_correlation_reaches_all_messages():
    with outbox.correlation("c"):
        outbox.stash_many([Message("heroes"), Message("heroes", correlation_id="own")])
        outbox.stash("heroes")
    assert [row[-1][-1] for row in stored()] == ["c", "own", "c"]


def test_an_iterator_may_use_the_connection(monkeypatch):
    monkeypatch.setattr(api, "CHUNK_ROWS", 10)
    monkeypatch.setattr(api, "INSERT_ROWS_MAX", 0)

    def messages():
        for n in range(35):
            with connection.cursor() as cursor:
                cursor.execute("SELECT %s", [n])
                yield Message("heroes", str(cursor.fetchone()[0]))

    assert len(outbox.stash_many(messages())) == 35
    assert [row[3] for row in stored()] == [str(n) for n in range(35)]


@pytest.mark.parametrize("limit", [{"CHUNK_ROWS": 20}, {"CHUNK_BYTES": 20_000}])
def test_memory_holds_a_few_chunks_of_an_iterator(monkeypatch, limit):
    for name, value in limit.items():
        monkeypatch.setattr(api, name, value)
    alive = []

    def messages():
        for n in range(400):
            if n % 20 == 0:
                gc.collect()
                alive.append(sum(type(thing) is Message for thing in gc.get_objects()))
            yield Message("heroes", "x" * 1_000)

    gc.freeze()  # what other tests have left is not looked through
    try:
        assert len(outbox.stash_many(messages())) == 400
    finally:
        gc.unfreeze()
    assert max(alive) - alive[0] <= 45


# --- refusals ---


@pytest.mark.parametrize("count", [5, 3_000])
def test_a_refused_message_leaves_nothing_of_the_call(monkeypatch, count):
    monkeypatch.setattr(api, "CHUNK_ROWS", 1_100)
    before = outbox.stash("heroes", "before")
    messages = [Message("heroes", str(n)) for n in range(count)]
    messages[-2] = Message("heroes", "nul \0")
    with pytest.raises(InvalidMessage) as caught:
        outbox.stash_many(messages)
    assert str(caught.value).startswith(f"messages[{count - 2}]: value: 'nul \\x00' has a NUL character")
    after = outbox.stash("heroes", "after")
    assert [row[0] for row in stored()] == [before, after]


def test_an_iterator_that_raises_leaves_nothing_of_the_call(monkeypatch):
    monkeypatch.setattr(api, "CHUNK_ROWS", 1_100)

    def messages():
        for n in range(3_000):
            yield Message("heroes", str(n))
        raise LookupError

    with pytest.raises(LookupError):
        outbox.stash_many(messages())
    assert stored() == []


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        ([Message("heroes"), {"topic": "heroes"}], "messages[1]: {'topic': 'heroes'} is dict. Pass outbox.Message"),
        ([Message("heroes", object())], "messages[0]: value: <object object"),
        ([Message("heroes"), Message("no topic")], "messages[1]: topic: 'no topic' is not a topic name."),
    ],
)
def test_a_refused_message_is_named_by_its_position(messages, told):
    with pytest.raises(InvalidMessage) as caught:
        outbox.stash_many(messages)
    assert str(caught.value).startswith(told)


def test_ordered_needs_a_key():
    with pytest.raises(InvalidMessage, match=r'^key: "" is empty, and ordered=True keeps the order of a key'):
        outbox.stash("heroes", ordered=True)
    with pytest.raises(InvalidMessage, match=r'^messages\[1\]: key: "" is empty'):
        outbox.stash_many([Message("heroes", key="k"), Message("heroes")], ordered=True)
    assert stored() == []


def test_sqlite_is_refused_by_name():
    connections.settings["lite"] = {**connections["default"].settings_dict, "ENGINE": "django.db.backends.sqlite3"}
    connections.settings["lite"] |= {"NAME": ":memory:", "OPTIONS": {}}
    try:
        for call in (lambda: outbox.stash("heroes", using="lite"), lambda: outbox.stash_many([], using="lite")):
            with pytest.raises(OutboxError, match="needs PostgreSQL, but the database alias 'lite' is sqlite"):
                call()
    finally:
        del connections["lite"]
        del connections.settings["lite"]


def test_a_table_without_its_sequence_is_named(monkeypatch):
    monkeypatch.setattr(api, "INSERT_ROWS_MAX", 0)
    with connection.cursor() as cursor:
        cursor.execute("ALTER SEQUENCE outbox_id_seq OWNED BY NONE")
    with pytest.raises(OutboxError, match=r'The table "outbox" has no sequence for "id"'):
        outbox.stash_many([Message("heroes")])


# --- transactions ---

OUTSIDE = (
    "stash() was called outside a transaction: the record could outlive a rolled-back change. Wrap both in "
    'transaction.atomic(). To stash a record without a change, set OUTBOX["AUTOCOMMIT_STASH"] = True.'
)


@pytest.mark.django_db(transaction=True)
class TestOutsideOfTestTransactions:
    def test_stash_outside_a_transaction_is_refused(self):
        with pytest.raises(StashOutsideTransaction) as caught:
            outbox.stash("heroes")
        assert str(caught.value) == OUTSIDE
        with pytest.raises(StashOutsideTransaction, match=r"^stash_many\(\) was called outside a transaction"):
            outbox.stash_many([])
        assert stored() == []

    @pytest.mark.parametrize("ordered", [False, True])
    @pytest.mark.parametrize("count", [2, 1_001])
    def test_autocommit_may_be_allowed(self, settings_of_outbox, count, ordered):
        settings_of_outbox(AUTOCOMMIT_STASH=True)
        outbox.stash("heroes", key="k", ordered=ordered)
        outbox.stash_many([Message("heroes", key=str(n)) for n in range(count)], ordered=ordered)
        assert len(stored()) == count + 1
        assert not connection.in_atomic_block

    def test_in_autocommit_mode_locks_and_ids_last_until_their_rows(self, settings_of_outbox):
        settings_of_outbox(AUTOCOMMIT_STASH=True)
        seen = []

        def watch(execute, sql, params, many, context):
            seen.append((context["connection"].in_atomic_block, sql))
            return execute(sql, params, many, context)

        for count, ordered in ((2, True), (1_001, True), (1_001, False)):
            with connection.execute_wrapper(watch):
                outbox.stash_many([Message("heroes", key="k")] * count, ordered=ordered)
        assert [sql for in_transaction, sql in seen if not in_transaction] == []
        assert sum("pg_advisory_xact_lock" in sql for _, sql in seen) == 2

    def test_manual_transactions_are_transactions(self):
        transaction.set_autocommit(False)
        try:
            outbox.stash("heroes", "rolled back")
            outbox.stash_many([Message("heroes", "rolled back")] * 1_001)
            transaction.rollback()
            outbox.stash("heroes", "kept")
            outbox.stash_many([Message("heroes", "kept")] * 1_001)
            transaction.commit()
        finally:
            transaction.set_autocommit(True)
        assert [row[3] for row in stored()] == ["kept"] * 1_002

    def test_rolled_back_transaction_leaves_nothing(self):
        with transaction.atomic():
            outbox.stash("heroes")
            outbox.stash_many([Message("heroes")] * 1_001)
            transaction.set_rollback(True)
        assert stored() == []

    def test_threads_stash_beside_each_other(self):
        ids = []

        def work(number):
            try:
                for n in range(20):
                    with transaction.atomic(), outbox.correlation(f"{number}"):
                        ids.append((outbox.stash("heroes", f"{n}", key=f"{number}"), f"{number}", f"{n}"))
            finally:
                connection.close()

        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        rows = stored()
        assert sorted(ids) == [(row[0], row[2], row[3]) for row in rows]
        assert len(rows) == 120
        assert all(row[-1][-1] == row[2] for row in rows)

    def test_coroutines_are_told_to_use_a_thread(self):
        async def view():
            outbox.stash("heroes")

        with pytest.raises(SynchronousOnlyOperation):
            asyncio.run(view())


def test_rolled_back_savepoints_drop_only_their_rows():
    first = outbox.stash("heroes")
    with pytest.raises(LookupError), transaction.atomic():
        raise_after(lambda: (outbox.stash("heroes"), outbox.stash_many([Message("heroes")] * 1_001)))
    with transaction.atomic():
        second = outbox.stash("heroes")
    assert [row[0] for row in stored()] == [first, second]


def raise_after(work):
    work()
    raise LookupError


@pytest.mark.parametrize("count", [1, 1_001])
def test_in_a_broken_transaction_django_says_so(count):
    with transaction.atomic():
        with pytest.raises(ProgrammingError), connection.cursor() as cursor:
            cursor.execute("SELECT nothing_of_this_name")
        connection.needs_rollback = True
        with pytest.raises(transaction.TransactionManagementError):
            outbox.stash("heroes")
        with pytest.raises(transaction.TransactionManagementError):
            outbox.stash_many([Message("heroes")] * count)
        transaction.set_rollback(True)


@pytest.mark.parametrize("count", [1, 1_001])
def test_errors_of_the_database_are_those_of_django(count):
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE outbox ALTER kafka_key TYPE varchar(100)")
    with pytest.raises(DataError), transaction.atomic():
        outbox.stash_many([Message("heroes", key="k" * 101)] * count)
    assert stored() == []


class InsideTestCase(TestCase):
    """Tests of applications stash in the transaction that Django wraps round each test."""

    @classmethod
    def setUpTestData(cls):
        cls.id = outbox.stash("heroes", "from setUpTestData")

    def test_stash(self):
        id = outbox.stash("heroes", "from the test")
        assert [row[0] for row in stored()] == [self.id, id]


# --- ids and the harvester ---


@pytest.mark.parametrize("attempt", range(3))
def test_the_transaction_has_its_xid_when_ids_are_drawn_for_copy(attempt):
    """nextval alone gives a transaction its xid only on every 32nd value."""
    sql = api._statements(connection)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_current_xact_id_if_assigned() IS NOT NULL")
        assert cursor.fetchone() == (False,)
        cursor.execute(sql.draw_ids, (sql.table, 1))
        cursor.execute("SELECT pg_current_xact_id_if_assigned() IS NOT NULL")
        assert cursor.fetchone() == (True,)
