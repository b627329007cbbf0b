"""From what was fetched to a call of the user's function."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from outbox.consumers.message import ConsumedMessage
from outbox.consumers.registry import Consumer
from outbox.core.consumers.values import Fetched
from outbox.exceptions import InvalidConsumer
from outbox.messages.context import stash_alias


class Handling:
    """Calls the function of one consumer. Any number of threads may call it."""

    def __init__(self, consumer: Consumer, alias: str) -> None:
        """`alias` is that of the transaction in which it is called."""
        self._consumer, self._alias = consumer, alias

    def __call__(self, messages: Sequence[Fetched], attempt: int) -> None:
        consumer = self._consumer
        found = [ConsumedMessage(message, consumer.name, attempt, consumer.decoder) for message in messages]
        token = stash_alias.set(self._alias)
        try:
            result = consumer.function(found if consumer.options.many else found[0])
        finally:
            stash_alias.reset(token)
        _require_done(consumer.name, result)


def _require_done(name: str, result: Any) -> None:
    """A wrapper may hide that the function behind it has only begun."""
    if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        if inspect.iscoroutine(result) or inspect.isgenerator(result):
            result.close()
        raise InvalidConsumer(
            f"The function of the consumer {name!r} returned a {type(result).__name__} and did nothing"
        )
