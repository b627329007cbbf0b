"""outbox.correlation: blocks, threads, tasks and decorated functions."""

import asyncio
import threading

import pytest

from outbox import correlation
from outbox.exceptions import InvalidMessage
from outbox.messages.context import current_correlation_id


def test_blocks_nest_and_end_also_by_an_exception():
    with correlation("outer"):
        with correlation("inner"):
            assert current_correlation_id() == "inner"
        with pytest.raises(KeyError), correlation("inner"):
            raise KeyError
        with correlation(None):
            assert current_correlation_id() is None
        assert current_correlation_id() == "outer"
    assert current_correlation_id() is None


def test_one_instance_may_be_entered_twice():
    block = correlation("c")
    with block, block:
        assert current_correlation_id() == "c"
    assert current_correlation_id() is None


def test_threads_keep_their_own():
    seen = []
    with correlation("main"):
        thread = threading.Thread(target=lambda: seen.append(current_correlation_id()))
        thread.start()
        thread.join()
    assert seen == [None]


def test_decorated_function_and_coroutine_function():
    @correlation("sync")
    def work():
        return current_correlation_id()

    @correlation("async")
    async def work_later():
        await asyncio.sleep(0)
        return current_correlation_id()

    async def together():
        with correlation("outside"):
            results = await asyncio.gather(work_later(), work_later())
            return [*results, current_correlation_id()]

    assert work() == "sync"
    assert work.__name__ == "work"
    assert asyncio.run(together()) == ["async", "async", "outside"]
    assert current_correlation_id() is None


@pytest.mark.parametrize(("given", "told"), [(5, "5 is int, not str"), ("", "is empty")])
def test_wrong_ids_are_named(given, told):
    with pytest.raises(InvalidMessage, match=told):
        correlation(given)
