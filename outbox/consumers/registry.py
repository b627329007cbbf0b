"""The decorator `outbox.consumer`, and the consumers that it registered.

They are declared in the module `inbox` of each installed app, which is imported when consumers are asked for: by the
command `consume` and by `manage.py check`, never by a web process.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from sys import _getframe
from typing import Any, TypeVar

from django.db import connections

from outbox.consumers.message import ConsumedMessage, text
from outbox.core.consumers.values import DEAD_LETTER, EARLIEST, HOLD, LATEST, STOP, ConsumerOptions
from outbox.exceptions import InvalidConsumer

MODULE = "inbox"

_DEFAULTS = ConsumerOptions("")
_BATCH_MAX = 100_000
_ATTEMPTS_MAX = 1_000
_SECONDS = (0.1, 86_400.0)
_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_ERROR_TOPIC = "topic:"

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumer:
    """A function and how messages come to it. `consumer` says what the fields mean."""

    options: ConsumerOptions
    function: Callable[[Any], Any]
    names: tuple[str, ...]
    """Of topics."""
    patterns: tuple[re.Pattern[str], ...]
    durable: bool
    using: str | None
    decoder: Callable[[bytes], Any]
    dedupe: bool | Callable[[ConsumedMessage], str]
    declared_at: str
    """File and line of the call of `consumer`, and those of the function."""

    @property
    def name(self) -> str:
        return self.options.name

    def matches(self, topic: str) -> bool:
        """Whether it handles messages of this topic."""
        return topic in self.names or any(pattern.fullmatch(topic) for pattern in self.patterns)


_consumers: dict[str, Consumer] = {}


def consumer(
    *topics: str | re.Pattern[str],
    many: bool = False,
    batch: int = _DEFAULTS.batch,
    start: str = EARLIEST,
    on_error: str = HOLD,
    attempts: int = _DEFAULTS.attempts,
    backoff: float = _DEFAULTS.backoff_s,
    timeout_s: float = _DEFAULTS.timeout_s,
    durable: bool = True,
    using: str | None = None,
    name: str = "",
    decoder: Callable[[bytes], Any] = text,
    dedupe: bool | Callable[[ConsumedMessage], str] = False,
) -> Callable[[Function], Function]:
    """Handle messages of these topics with the decorated function, each exactly once, in a transaction of Django.

    `topics` are names, or patterns made by `re.compile`, which match whole names. The function gets one message; with
    `many` it gets a list. `batch` is the largest number of messages in one transaction. `start` says where it begins
    when it has never consumed a topic: at the first message there is, or behind the last one. A message whose function
    raises is held, and so are later messages of its key. It is tried again, `attempts` times in all, first after
    `backoff` seconds and then after longer pauses. After that `on_error` decides: with "hold" it waits for an operator,
    with "dead-letter" it becomes a dead letter and its key goes on, with "topic:NAME" it is stashed for that topic and
    its key goes on. With "stop" nothing is held: the partition waits, and then stops. A function that takes longer than
    `timeout_s` is ended with its process. `durable=False` does not wait for the disk of PostgreSQL: after a crash of
    the server, messages are handled again whose effects were lost with their positions. `using` is the alias of the
    database, DATABASE unless given. `name` identifies the consumer in PostgreSQL and Kafka: a consumer with another
    name starts from the beginning. It is `<app>.<function>` unless given. `decoder` turns the bytes of a value into
    `message.value`. `dedupe` leaves out messages that the sender repeats: with True those whose header `message-id` was
    handled before, with a function those for which it returns the same text.

    The function is returned as it is.
    """
    given = _Given(
        topics, many, batch, start, on_error, attempts, backoff, timeout_s, durable, using, name, decoder, dedupe
    )
    caller = _getframe(1)
    called_at = f"{caller.f_code.co_filename}:{caller.f_lineno}"
    if len(topics) == 1 and callable(topics[0]):
        raise InvalidConsumer('@outbox.consumer needs topics. Write @outbox.consumer("orders").')

    def register(function: Function) -> Function:
        _add(given.consumer(function, called_at))
        return function

    return register


def registered() -> Mapping[str, Consumer]:
    """Every consumer by its name, once the modules `inbox` of all apps are imported."""
    from django.utils.module_loading import autodiscover_modules

    autodiscover_modules(MODULE)
    return dict(sorted(_consumers.items()))


def _add(found: Consumer) -> None:
    there = _consumers.get(found.name)
    if there is not None and not _is_same(there, found):
        first, second = (f"{_place(one.function)} ({one.declared_at})" for one in (there, found))
        raise InvalidConsumer(
            f"Two consumers have the name {found.name!r}: {first} and {second}. They would share one position. Give "
            "one of them another name=, or name all topics in one @outbox.consumer(...)."
        )
    _consumers[found.name] = found


def _is_same(there: Consumer, found: Consumer) -> bool:
    """Its module was imported again."""
    fields = attrgetter("names", "patterns", "options", "durable", "using")
    is_equal = fields(there) == fields(found)
    is_there = there.function is found.function or there.declared_at == found.declared_at
    return is_equal and is_there and _place(there.function) == _place(found.function)


def _code_at(function: Any) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else repr(type(function))


def _place(function: Any) -> str:
    name = getattr(function, "__qualname__", repr(function))
    return f"{function.__module__}.{name}" if hasattr(function, "__module__") else str(name)


@dataclass(frozen=True, slots=True)
class _Given:
    """The arguments of `consumer`, as somebody wrote them."""

    topics: tuple[Any, ...]
    many: Any
    batch: Any
    start: Any
    on_error: Any
    attempts: Any
    backoff: Any
    timeout_s: Any
    durable: Any
    using: Any
    name: Any
    decoder: Any
    dedupe: Any

    def consumer(self, function: Any, called_at: str) -> Consumer:
        """Raises `InvalidConsumer` with everything that is wrong."""
        name = self.name or _default_name(function)
        problems = [*self._topics(), *self._values(), *_function(function, many=self.many is True), *_name(name)]
        if problems:
            raise InvalidConsumer(f"The consumer {_place(function)} cannot work. {' '.join(problems)}")
        options = ConsumerOptions(
            name,
            start=self.start,
            batch=self.batch,
            many=self.many,
            timeout_s=float(self.timeout_s),
            attempts=self.attempts,
            backoff_s=float(self.backoff),
            on_error="" if self.on_error.startswith(_ERROR_TOPIC) else self.on_error,
            error_topic=self.on_error[len(_ERROR_TOPIC) :] if self.on_error.startswith(_ERROR_TOPIC) else "",
        )
        return Consumer(
            options=options,
            function=function,
            names=tuple(topic for topic in self.topics if isinstance(topic, str)),
            patterns=tuple(topic for topic in self.topics if isinstance(topic, re.Pattern)),
            durable=self.durable,
            using=self.using,
            decoder=self.decoder,
            dedupe=self.dedupe,
            declared_at=f"{called_at}, {_code_at(function)}",
        )

    def _topics(self) -> Iterator[str]:
        if not self.topics:
            yield 'It names no topic. Write @outbox.consumer("orders").'
        for topic in self.topics:
            if isinstance(topic, re.Pattern) and isinstance(topic.pattern, str):
                continue
            if not isinstance(topic, str):
                yield (
                    f"The topic {topic!r:.100} is {type(topic).__name__}. Name a topic, or give re.compile(...) of a "
                    'text. Write several topics as @outbox.consumer("orders", "payments").'
                )
            elif not _is_topic(topic):
                yield (
                    f"The topic {topic!r:.100} has no name that Kafka allows: 1 to 249 letters, digits, dots, "
                    "underscores and hyphens. Give a pattern as re.compile(...)."
                )

    def _values(self) -> Iterator[str]:
        for option in ("many", "durable"):
            if not isinstance(getattr(self, option), bool):
                yield f"{option}={getattr(self, option)!r:.100} is neither True nor False."
        for option, most in (("batch", _BATCH_MAX), ("attempts", _ATTEMPTS_MAX)):
            number = getattr(self, option)
            if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= most:
                yield f"{option}={number!r:.100} is no whole number from 1 to {most:,}."
        if self.start not in (EARLIEST, LATEST):
            yield f'start={self.start!r:.100} is neither "earliest" nor "latest".'
        yield from self._on_errors()
        low, high = _SECONDS
        for option in ("timeout_s", "backoff"):
            number = getattr(self, option)
            is_number = isinstance(number, int | float) and not isinstance(number, bool)
            if not is_number or not low <= number <= high:
                yield f"{option}={number!r:.100} is no number of seconds from {low:g} to {high:g}."
        if self.using is not None and (not isinstance(self.using, str) or not self.using):
            yield f"using={self.using!r:.100} is no alias of DATABASES."
        if not callable(self.decoder) or inspect.iscoroutinefunction(self.decoder):
            yield f"decoder={self.decoder!r:.100} is no function of bytes. Name a plain function."
        is_function = callable(self.dedupe) and not inspect.iscoroutinefunction(self.dedupe)
        if not isinstance(self.dedupe, bool) and not is_function:
            yield f"dedupe={self.dedupe!r:.100} is neither True nor False nor a function of a message."

    def _on_errors(self) -> Iterator[str]:
        given = self.on_error
        if not isinstance(given, str) or not (given in (HOLD, STOP, DEAD_LETTER) or given.startswith(_ERROR_TOPIC)):
            yield f'on_error={given!r:.100} is none of "hold", "stop", "dead-letter" and "topic:NAME".'
        elif given.startswith(_ERROR_TOPIC) and not _is_topic(given[len(_ERROR_TOPIC) :]):
            yield f"on_error={given!r:.100} names no topic that Kafka allows."
        elif given.startswith(_ERROR_TOPIC) and self._reads(given[len(_ERROR_TOPIC) :]):
            yield f"on_error={given!r:.100} names a topic that the consumer itself reads. Name another topic."

    def _reads(self, topic: str) -> bool:
        return any(one.fullmatch(topic) if isinstance(one, re.Pattern) else one == topic for one in self.topics)


def _is_topic(name: str) -> bool:
    return bool(_TOPIC.fullmatch(name)) and not (name.strip(".") == "" and len(name) < 3)


def _function(function: Any, *, many: bool) -> Iterator[str]:
    called = (function, type(function).__call__) if callable(function) else (function,)
    if any(inspect.iscoroutinefunction(one) or inspect.isasyncgenfunction(one) for one in called):
        yield "It is async, and Django's transactions are not. Write it with def, and call async code by async_to_sync."
    elif any(map(inspect.isgeneratorfunction, called)):
        yield "It has a yield, so calling it does nothing. Leave the yield out."
    elif not callable(function) or isinstance(function, type):
        yield "It is no function. Decorate a function of one argument."
    else:
        try:
            inspect.signature(function).bind(object())
        except TypeError as error:
            wanted = "the list of messages" if many else "the message"
            yield f"It cannot be called with {wanted} alone: {error}. Give it one argument."
        except ValueError:
            return  # a function of C, which does not say


def _name(name: Any) -> Iterator[str]:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        yield (
            f"Its name {name!r:.100} is not 1 to 200 letters, digits, dots, underscores and hyphens. Set name=, which "
            "must stay the same: the position belongs to it."
        )


def _default_name(function: Any) -> str:
    from django.apps import apps

    module = getattr(function, "__module__", "")
    found = apps.get_containing_app_config(module) if apps.apps_ready else None
    label = found.label if found else module.rpartition(".")[0].rpartition(".")[2] or module
    return f"{label}.{getattr(function, '__name__', '')}"


def unfit(alias: str) -> str:
    """Why no consumer can use the database; empty: one can."""
    if alias not in connections:
        return f"DATABASES has only {', '.join(connections)}"
    vendor = connections[alias].vendor
    return "" if vendor == "postgresql" else f"it is {vendor}"
