"""From what was fetched to a call of the user's function."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from django.db import connections

from outbox.consumers.message import ConsumedMessage
from outbox.consumers.registry import Consumer
from outbox.core.consumers.values import Fetched
from outbox.exceptions import InvalidConsumer
from outbox.messages.context import stash_alias

logger = logging.getLogger("outbox.consumers")

_WRITES = re.compile(
    r"\s*(?:/\*.*?\*/\s*)*(?:INSERT|UPDATE|DELETE|MERGE|REPLACE|TRUNCATE)\b", re.IGNORECASE | re.DOTALL
)


class Handling:
    """Calls the function of one consumer. Any number of threads may call it."""

    def __init__(self, consumer: Consumer, alias: str) -> None:
        """`alias` is that of the transaction in which it is called."""
        self._consumer, self._alias = consumer, alias
        self._logged: set[str] = set()

    def __call__(self, messages: Sequence[Fetched], attempt: int) -> None:
        consumer = self._consumer
        found = [ConsumedMessage(message, consumer.name, attempt, consumer.decoder) for message in messages]
        token = stash_alias.set(self._alias)
        try:
            with ExitStack() as stack:
                for other in connections:
                    if other != self._alias and other not in self._logged:
                        stack.enter_context(connections[other].execute_wrapper(self._watch))
                result = consumer.function(found if consumer.options.many else found[0])
        finally:
            stash_alias.reset(token)
        _require_done(consumer.name, result)

    def _watch(self, execute: Any, statement: Any, params: Any, many: bool, context: Mapping[str, Any]) -> Any:
        alias = context["connection"].alias
        if alias not in self._logged and _WRITES.match(str(statement)):
            self._logged.add(alias)
            logger.warning("write_outside consumer=%s alias=%s", self._consumer.name, alias)
        return execute(statement, params, many, context)


def _require_done(name: str, result: Any) -> None:
    """A wrapper may hide that the function behind it has only begun."""
    if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        if inspect.iscoroutine(result) or inspect.isgenerator(result):
            result.close()
        raise InvalidConsumer(
            f"The function of the consumer {name!r} returned a {type(result).__name__} and did nothing"
        )
