"""What a careless function does. The message says which of these, in its header `does`."""

import ctypes
import os
import sys
import time

from django.contrib.admin.models import LogEntry
from django.db import Error, connection, transaction

from tests.consumers.shop.models import Effect


def do(message):
    """Nothing once the function is correct."""
    if (name := message.header("does")) and not os.environ.get("SHOP_IS_CORRECT"):
        BY_NAME[name](message)


def fail(message):
    raise ValueError(f"the message {message.value} is refused")


def swallow_an_error(message):
    try:
        execute("SELECT 1/0")
    except Error:
        pass


def set_rollback(message):
    transaction.set_rollback(True)


def close(message):
    connection.close()


def leave_a_block_open(message):
    transaction.atomic().__enter__()


def violate_a_foreign_key(message):
    """PostgreSQL checks it in COMMIT."""
    LogEntry.objects.create(user_id=-1, action_flag=1, object_repr="")


def leave_a_savepoint_open(message):
    execute("SAVEPOINT careless")


def add_a_hook_that_raises(message):
    transaction.on_commit(lambda: fail(message))
    transaction.on_commit(lambda: Effect.objects.create(consumer="shop.hook", partition=0, offset=0, attempt=1))


def commit(message):
    execute("COMMIT")


def roll_back(message):
    execute("ROLLBACK")


def ask_for_durability(message):
    with transaction.atomic(durable=True):
        pass


def leave(message):
    sys.exit(3)


def abort(message):
    os.abort()


def read_no_memory(message):
    ctypes.string_at(0)


def hang(message):
    time.sleep(600)


def execute(statement):
    with connection.cursor() as cursor:
        cursor.execute(statement)


HELD = (fail, swallow_an_error, set_rollback, close, leave_a_block_open, violate_a_foreign_key)
"""They cost their own message."""
HARMLESS = (leave_a_savepoint_open, add_a_hook_that_raises)
STOPPING = (commit, roll_back, ask_for_durability, leave)
"""They end the process with code 1."""
CRASHING = (abort, read_no_memory, hang)
BY_NAME = {one.__name__: one for one in (*HELD, *HARMLESS, *STOPPING, *CRASHING)}
