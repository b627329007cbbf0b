"""The context that a message inherits: the correlation id of `outbox.correlation`, and the trace.

The module is not called ``correlation``: a submodule of that name would hide the public class in the package.
"""

import functools
import inspect
import sys
import time
from collections.abc import Callable
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any, TypeVar, cast

from outbox.exceptions import InvalidMessage

_correlation_id: ContextVar[str | None] = ContextVar("outbox_correlation_id", default=None)

_Function = TypeVar("_Function", bound=Callable[..., Any])


class correlation:
    """Give every message stashed inside the block this correlation id.

    Blocks may nest, and the innermost one counts. ``correlation(None)`` means no id. Each thread and asyncio task has
    its own. It is also a decorator, for functions and coroutine functions::

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
        raise InvalidMessage('correlation id: "" is empty. Pass a non-empty string, or None for no correlation id.')
    kind = type(correlation_id).__name__
    raise InvalidMessage(f"correlation id: {correlation_id!r} is {kind}, not str. Pass str(...) of it.")


current_correlation_id = _correlation_id.get

stash_alias: ContextVar[str | None] = ContextVar("outbox_stash_alias", default=None)
"""The database that `stash` writes to unless it is given another: of the consumer whose function runs."""

stash_is_off: ContextVar[bool] = ContextVar("outbox_stash_is_off", default=False)
"""`stash` and `stash_many` do nothing: a consumer handles once more what it has handled before."""

TRACE_PARENT, TRACE_STATE, STASHED_AT = "traceparent", "tracestate", "outbox-stashed-at"


def is_tracing() -> bool:
    """Return whether this process uses OpenTelemetry. The function does not import it: a process that has not imported
    it has no span."""
    return "opentelemetry.trace" in sys.modules


def trace_headers() -> tuple[tuple[str, str], ...]:
    """Return the W3C trace context of the current span, and the time in milliseconds, from which the harvester computes
    how long the record waited. Without a span it is empty. An error of tracing must not prevent a stash."""
    if not is_tracing():
        return ()
    try:
        context = sys.modules["opentelemetry.trace"].get_current_span().get_span_context()
        if not context.is_valid:
            return ()
        parent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"
        state = context.trace_state.to_header() if context.trace_state else ""
    except Exception:
        return ()
    stashed_at = ((STASHED_AT, str(time.time_ns() // 1_000_000)),) if int(context.trace_flags) & 1 else ()
    return ((TRACE_PARENT, parent), *(((TRACE_STATE, state),) if state else ()), *stashed_at)
