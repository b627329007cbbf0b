"""Sends deliveries with libcurl: many at a time, in one thread. Nothing is decided here.

libcurl opens a socket by a callback that gets the address, after the name is resolved and before anything is sent. The
callback applies the rules for addresses. So no form of an address and no second answer of a name server evades them.

libcurl sends a request again by itself if a connection that it has used before ends without an answer. The receiver
then gets the same id twice.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pycurl

from outbox.core.relay.addresses import AddressRules
from outbox.core.relay.requests import InvalidHeader, request_headers
from outbox.core.relay.results import Answered, AttemptResult, Transport
from outbox.core.relay.schedule import retry_after
from outbox.core.relay.turns import Delivery
from outbox.runtime import Runtime
from outbox.runtime.threads import THREADS

CONNECT_S = 3.0
CONNECTION_LIFETIME_S = 300
"""A pooled connection keeps its address. After so long the name is resolved again."""
BODY_MAX = 64 * 1024
"""Of an answer; the rest is not read."""
TEXT_MAX = 500
"""Of an answer, kept for people."""
_EVENTS_MAX = 1_000
_RETRY_AFTER = b"retry-after:"

_TLS = (
    pycurl.E_SSL_CONNECT_ERROR,
    pycurl.E_PEER_FAILED_VERIFICATION,
    pycurl.E_SSL_CERTPROBLEM,
    pycurl.E_SSL_CIPHER,
    pycurl.E_SSL_CACERT_BADFILE,
    pycurl.E_SSL_ISSUER_ERROR,
    pycurl.E_SSL_CRL_BADFILE,
    pycurl.E_SSL_INVALIDCERTSTATUS,
    pycurl.E_SSL_PINNEDPUBKEYNOTMATCH,
    pycurl.E_USE_SSL_FAILED,
)
_NOT_SENT = (pycurl.E_URL_MALFORMAT, pycurl.E_UNSUPPORTED_PROTOCOL)
"""If nothing was sent. A receiver that answers something else than HTTP is reported by the second one too."""
_TRANSPORTS = {
    pycurl.E_COULDNT_RESOLVE_HOST: Transport.RESOLVE,
    pycurl.E_COULDNT_RESOLVE_PROXY: Transport.RESOLVE,
    pycurl.E_COULDNT_CONNECT: Transport.CONNECT,
    pycurl.E_OPERATION_TIMEDOUT: Transport.TIMEOUT,
    **dict.fromkeys(_TLS, Transport.TLS),
}


class HttpTarget(NamedTuple):
    """Where the deliveries of a destination go."""

    url: str
    keys: tuple[bytes, ...]
    headers: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class HttpOptions:
    ca_file: str
    rules: AddressRules = field(default_factory=AddressRules)
    allow_http: bool = False
    proxy: str = ""
    """Its URL. The proxy then connects, so it has to apply rules for addresses."""
    connect_s: float = CONNECT_S


class _Duplicated:
    """A socket for pycurl, which makes a duplicate of it and then drops it."""

    def __init__(self, made: socket.socket) -> None:
        self._made = made

    def fileno(self) -> int:
        return self._made.fileno()

    def __del__(self) -> None:
        self._made.close()


class Exchange:
    """One request and its answer, on a handle that is used again."""

    def __init__(self, options: HttpOptions) -> None:
        self._options = options
        self.handle: Any = pycurl.Curl()
        self.delivery: Delivery | None = None
        self._refusal, self._was_allowed = "", False
        self._body, self._retry_after = bytearray(), ""
        self._set_up()

    def _set_up(self) -> None:
        handle, options = self.handle, self._options
        schemes = pycurl.PROTO_HTTPS | (pycurl.PROTO_HTTP if options.allow_http else 0)
        for option, value in (
            (pycurl.NOSIGNAL, 1),
            (pycurl.PROTOCOLS, schemes),
            (pycurl.FOLLOWLOCATION, 0),
            (pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_1_1),
            # Empty and not unset: libcurl would else take one from the environment, and connect past the rules.
            (pycurl.PROXY, options.proxy),
            (pycurl.NOPROXY, ""),
            (pycurl.CAINFO, options.ca_file),
            (pycurl.SSL_VERIFYPEER, 1),
            (pycurl.SSL_VERIFYHOST, 2),
            (pycurl.CONNECTTIMEOUT_MS, int(options.connect_s * 1000)),
            (pycurl.MAXLIFETIME_CONN, CONNECTION_LIFETIME_S),
            (pycurl.TCP_KEEPALIVE, 1),
            (pycurl.POST, 1),
            (pycurl.WRITEFUNCTION, self._write),
            (pycurl.HEADERFUNCTION, self._header),
            (pycurl.OPENSOCKETFUNCTION, self._open),
        ):
            handle.setopt(option, value)
        handle.exchange = self

    def prepare(self, delivery: Delivery, target: HttpTarget, headers: Mapping[str, str], deadline_s: float) -> None:
        assert delivery.content is not None
        self.delivery, self._refusal, self._was_allowed = delivery, "", False
        self._body, self._retry_after = bytearray(), ""
        lines = [f"{name}: {value}" if value else f"{name};" for name, value in headers.items()]
        self.handle.setopt(pycurl.URL, target.url)
        self.handle.setopt(pycurl.HTTPHEADER, [*lines, "Expect:"])
        self.handle.setopt(pycurl.POSTFIELDS, delivery.content.payload)
        self.handle.setopt(pycurl.TIMEOUT_MS, max(1, int(deadline_s * 1000)))

    def _open(self, purpose: int, address: Any) -> Any:
        family, kind, protocol, place = address
        is_internet = family in (socket.AF_INET, socket.AF_INET6)
        if not self._options.proxy:
            found = self._options.rules.objection(*place[:2]) if is_internet else "it is not an internet address"
            if found:
                self._refusal = found
                return pycurl.SOCKET_BAD
        self._was_allowed = True
        return _Duplicated(socket.socket(family, kind, protocol))

    def _write(self, data: bytes) -> int | None:
        """Anything but the length of `data` ends the request; its status counts all the same."""
        self._body += data[: BODY_MAX - len(self._body)]
        return 0 if len(self._body) >= BODY_MAX else None

    def _header(self, line: bytes) -> None:
        if line[: len(_RETRY_AFTER)].lower() == _RETRY_AFTER:
            self._retry_after = line[len(_RETRY_AFTER) :].decode("latin-1").strip()

    def result(self, code: int, text: str, now: datetime) -> AttemptResult:
        """`code` is libcurl's; 0: the answer is complete."""
        status = self.handle.getinfo(pycurl.RESPONSE_CODE)
        if status >= 200:
            asked_s = retry_after(self._retry_after, now) if self._retry_after else None
            return AttemptResult(status, retry_after_s=asked_s, text="" if status < 300 else self._text())
        if self._refusal and not self._was_allowed:
            return AttemptResult(transport=Transport.FORBIDDEN, text=self._refusal)
        if code in _NOT_SENT and not self.handle.getinfo(pycurl.REQUEST_SIZE):
            return AttemptResult(transport=Transport.FORBIDDEN, text=text)
        return AttemptResult(transport=_TRANSPORTS.get(code, Transport.BROKEN), text=text)

    def _text(self) -> str:
        text = bytes(self._body[:TEXT_MAX]).decode(errors="replace")
        return " ".join("".join(c if c.isprintable() else " " for c in text).split())


class CurlSender:
    """One thread calls all but `wake`."""

    def __init__(
        self, options: HttpOptions, targets: Callable[[str], HttpTarget | None], runtime: Runtime = THREADS
    ) -> None:
        """`targets`: of a destination; None: it does not exist any more."""
        self._options, self._targets, self._runtime = options, targets, runtime
        self._multi: Any = pycurl.CurlMulti()
        self._epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake, select.EPOLLIN)
        self._timer_at: float | None = None
        self._free: list[Exchange] = []
        self._busy: dict[Exchange, None] = {}
        self._failed: list[Answered] = []
        """Attempts that ended before a connection was opened."""
        self._multi.setopt(pycurl.M_SOCKETFUNCTION, self._watch)
        self._multi.setopt(pycurl.M_TIMERFUNCTION, self._set_timer)

    def start(self, delivery: Delivery, deadline_s: float) -> None:
        target = self._targets(delivery.destination)
        if target is None:
            self._fail(delivery, "the destination does not exist")
            return
        exchange = self._free.pop() if self._free else Exchange(self._options)
        try:
            exchange.prepare(delivery, target, self._headers(delivery, target), deadline_s)
        except (InvalidHeader, pycurl.error, UnicodeError) as error:
            self._free.append(exchange)
            self._fail(delivery, str(error))
            return
        self._busy[exchange] = None
        self._multi.add_handle(exchange.handle)

    def _headers(self, delivery: Delivery, target: HttpTarget) -> Mapping[str, str]:
        content = delivery.content
        assert content is not None
        return request_headers(
            target.keys,
            content.message_id,
            self._runtime.time_ns() // 1_000_000_000,
            content.payload,
            content_type=content.content_type,
            event=content.event,
            attempt=delivery.attempts + 1,
            others=target.headers,
        )

    def _fail(self, delivery: Delivery, text: str) -> None:
        self._failed.append(Answered(delivery, AttemptResult(transport=Transport.FORBIDDEN, text=text)))

    def wait(self, timeout_s: float) -> list[Answered]:
        """Attempts that have ended."""
        failed, self._failed = self._failed, []
        for descriptor, events in self._epoll.poll(0 if failed else self._pause_s(timeout_s), _EVENTS_MAX):
            if descriptor == self._wake:
                os.eventfd_read(self._wake)
            else:
                self._multi.socket_action(descriptor, _action(events))
        if self._timer_at is not None and self._runtime.monotonic() >= self._timer_at:
            self._timer_at = None
            self._multi.socket_action(pycurl.SOCKET_TIMEOUT, 0)
        return failed + list(self._ended())

    def _pause_s(self, timeout_s: float) -> float:
        if self._timer_at is None:
            return timeout_s
        return max(0.0, min(timeout_s, self._timer_at - self._runtime.monotonic()))

    def _ended(self) -> Iterable[Answered]:
        now = datetime.fromtimestamp(self._runtime.time_ns() / 1e9, UTC)
        left = 1
        while left:
            left, whole, broken = self._multi.info_read()
            for handle, code, text in [(handle, 0, "") for handle in whole] + broken:
                exchange = handle.exchange
                result = exchange.result(code, text, now)
                self._multi.remove_handle(handle)
                del self._busy[exchange]
                self._free.append(exchange)
                yield Answered(exchange.delivery, result)

    def wake(self) -> None:
        with suppress(BlockingIOError):
            os.eventfd_write(self._wake, 1)

    def abandon(self) -> None:
        """Ends all attempts without a result, and closes everything."""
        for exchange in self._busy:
            self._multi.remove_handle(exchange.handle)
        for exchange in [*self._busy, *self._free]:
            exchange.handle.close()
        self._busy.clear()
        self._free.clear()
        self._multi.close()
        self._epoll.close()

    # ---- what libcurl asks for

    def _watch(self, event: int, descriptor: int, multi: Any, data: Any) -> None:
        if event == pycurl.POLL_REMOVE:
            with suppress(OSError):  # it may be closed
                self._epoll.unregister(descriptor)
            return
        wanted = 0
        if event in (pycurl.POLL_IN, pycurl.POLL_INOUT):
            wanted |= select.EPOLLIN
        if event in (pycurl.POLL_OUT, pycurl.POLL_INOUT):
            wanted |= select.EPOLLOUT
        try:
            self._epoll.register(descriptor, wanted)
        except FileExistsError:
            self._epoll.modify(descriptor, wanted)

    def _set_timer(self, timeout_ms: int) -> None:
        self._timer_at = None if timeout_ms < 0 else self._runtime.monotonic() + timeout_ms / 1000


def _action(events: int) -> int:
    found = 0
    if events & (select.EPOLLIN | select.EPOLLHUP):
        found |= pycurl.CSELECT_IN
    if events & select.EPOLLOUT:
        found |= pycurl.CSELECT_OUT
    if events & select.EPOLLERR:
        found |= pycurl.CSELECT_ERR
    return int(found)
