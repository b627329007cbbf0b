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
from outbox.messages.context import stash_alias, stash_is_off

logger = logging.getLogger("outbox.consumers")

_WRITES = re.compile(
    r"\s*(?:/\*.*?\*/\s*)*(?:INSERT|UPDATE|DELETE|MERGE|REPLACE|TRUNCATE)\b", re.IGNORECASE | re.DOTALL
)


MESSAGE_ID = "message-id"
"""The header that `stash()` writes."""
ID_MAX = 500


class Handling:
    """Calls the function of one consumer. Any number of threads may call it."""

    def __init__(
        self,
        consumer: Consumer,
        alias: str,
        *,
        id_header: str = MESSAGE_ID,
        is_replay: bool = False,
        stashes: bool = True,
    ) -> None:
        """`alias` is that of the transaction in which it is called."""
        self._is_replay, self._stashes = is_replay, stashes
        self._id_header = id_header or MESSAGE_ID
        self._alias = alias
        self._function, self._name, self._decoder = consumer.function, consumer.name, consumer.decoder
        self._dedupe = consumer.dedupe
        self._is_many = consumer.options.many
        self._watched = tuple(other for other in connections if other != alias)
        """Other aliases, without those through which a write was logged."""
        self._call = self._call_beside_others if self._watched else consumer.function

    def __call__(self, messages: Sequence[Fetched], attempt: int) -> None:
        name, decoder, is_replay = self._name, self._decoder, self._is_replay
        if not self._stashes:
            stash_is_off.set(True)  # and so it stays: functions of on_commit run in the same thread
        if self._is_many:
            result = self._call([ConsumedMessage(message, name, attempt, decoder, is_replay) for message in messages])
        else:
            result = self._call(ConsumedMessage(messages[0], name, attempt, decoder, is_replay))
        if result is not None:
            _require_done(name, result)

    def message(self, message: Fetched, attempt: int = 1) -> ConsumedMessage:
        """As the function gets it."""
        return ConsumedMessage(message, self._name, attempt, self._decoder, self._is_replay)

    def identify(self, message: Fetched) -> str:
        """The id by which a repeated message is known. Raises what is a failure of the message."""
        given = self.message(message)
        found = self._dedupe(given) if callable(self._dedupe) else given.header(self._id_header)
        if not isinstance(found, str) or not found or "\0" in found or len(found) > ID_MAX:
            raise ValueError(
                f"{given} has no id by which it is known when it is repeated: {found!r:.100}. dedupe=True reads the "
                f"header {self._id_header!r}; dedupe=function returns a text of 1 to {ID_MAX} characters."
            )
        return found

    def _call_beside_others(self, given: Any) -> Any:
        """If there is no other alias, `stash` can use this one only, and no write can be outside."""
        token = stash_alias.set(self._alias)
        try:
            with ExitStack() as stack:
                for other in self._watched:
                    stack.enter_context(connections[other].execute_wrapper(self._watch))
                return self._function(given)
        finally:
            stash_alias.reset(token)

    def _watch(self, execute: Any, statement: Any, params: Any, many: bool, context: Mapping[str, Any]) -> Any:
        alias = context["connection"].alias
        if alias in self._watched and _WRITES.match(str(statement)):
            self._watched = tuple(other for other in self._watched if other != alias)
            logger.warning("write_outside consumer=%s alias=%s", self._name, alias)
        return execute(statement, params, many, context)


def _require_done(name: str, result: Any) -> None:
    """A wrapper may hide that the function behind it has only begun."""
    if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        if inspect.iscoroutine(result) or inspect.isgenerator(result):
            result.close()
        raise InvalidConsumer(
            f"The function of the consumer {name!r} returned a {type(result).__name__} and did nothing"
        )
