"""The correlation id of the work in hand, kept in a context variable; `outbox.correlation` sets it.

The module is not called ``correlation``: a submodule of that name would hide the public class in the package.
"""

import functools
import inspect
from collections.abc import Callable
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any, TypeVar, cast

from outbox.exceptions import InvalidMessage

_correlation_id: ContextVar[str | None] = ContextVar("outbox_correlation_id", default=None)

_Function = TypeVar("_Function", bound=Callable[..., Any])


class correlation:
    """Give every message stashed inside the block this correlation id.

    Blocks nest, the innermost counts; ``correlation(None)`` means none. Threads and asyncio tasks keep their own.
    Also a decorator, for functions and coroutine functions::

        with outbox.correlation(request.headers["X-Request-ID"]):
            ...
    """

    def __init__(self, correlation_id: str | None) -> None:
        self.correlation_id = _checked(correlation_id)
        self._tokens: list[Token[str | None]] = []

    def __enter__(self) -> str | None:
        self._tokens.append(_correlation_id.set(self.correlation_id))
        return self.correlation_id

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _correlation_id.reset(self._tokens.pop())

    def __call__(self, function: _Function) -> _Function:
        # A block per call: one instance shared by threads or tasks would mix up their tokens.
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def in_block(*args: Any, **kwargs: Any) -> Any:
                with correlation(self.correlation_id):
                    return await function(*args, **kwargs)
        else:

            @functools.wraps(function)
            def in_block(*args: Any, **kwargs: Any) -> Any:
                with correlation(self.correlation_id):
                    return function(*args, **kwargs)

        return cast(_Function, in_block)


def _checked(correlation_id: object) -> str | None:
    if correlation_id is None or (isinstance(correlation_id, str) and correlation_id):
        return correlation_id
    if correlation_id == "":
        raise InvalidMessage("correlation id: is empty. Pass a non-empty string, or None for no correlation id.")
    kind = type(correlation_id).__name__
    raise InvalidMessage(f"correlation id: {correlation_id!r} is {kind}, not str. Pass str(...) of it.")


current_correlation_id = _correlation_id.get
