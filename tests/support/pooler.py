"""A pooler of transactions, as small as one can be: its clients keep their connections, and each transaction goes to
another backend. Unlike most it gives its backends the options of its clients, so that only what it does betrays it.

    with Pooler(url) as pooler:
        connect(pooler.url)
        pooler.lead_to(other_url)      # after a failover: the clients notice nothing
"""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg

HOST = "127.0.0.1"
_SSL, _GSS = 80877103, 80877104
_READY = b"Z\x00\x00\x00\x05I"  # for the next transaction


class Pooler:
    """`rotates`: the backend that was used longest ago comes next; else the one that was used last, as in most.
    `keeps`: a client has one of its own for as long as it leads to the same server."""

    def __init__(self, url: str, *, rotates: bool = False, keeps: bool = False) -> None:
        self._target, self._rotates, self._keeps = url, rotates, keeps
        self._idle: list[tuple[tuple[str, str], Any]] = []
        self._backends: list[Any] = []
        self._mutex = threading.Lock()
        self._listener = socket.create_server((HOST, 0))
        self._clients: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._options = ""

    @property
    def url(self) -> str:
        user = urlsplit(self._target).netloc.rpartition("@")[0]
        port = self._listener.getsockname()[1]
        return urlunsplit(urlsplit(self._target)._replace(netloc=f"{user}@{HOST}:{port}"))

    def lead_to(self, url: str) -> None:
        with self._mutex:
            self._target = url

    def __enter__(self) -> Pooler:
        self._start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for client in self._clients:
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
        for backend in self._backends:
            backend.cancel_safe(timeout=5)
        for thread in self._threads:
            thread.join(10)
        for closed in (*self._clients, *self._backends):
            closed.close()

    def _start(self, serve: Callable[..., None], *given: Any) -> None:
        self._threads.append(threading.Thread(target=serve, args=given, daemon=True))
        self._threads[-1].start()

    def _accept(self) -> None:
        while True:
            try:
                client = self._listener.accept()[0]
            except OSError:
                return
            self._clients.append(client)
            self._start(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError, psycopg.Error):
            used = self._log_in(client)
            while data := client.recv(1 << 16):
                if data.startswith(b"X"):
                    return
                with self._backend(used) as used:
                    last = _run(client, used, data)
                client.sendall(last)  # not before the backend is free: the next transaction may be anybody's

    def _log_in(self, client: socket.socket) -> Any:
        """The backend that it has had."""
        while True:
            length, code = struct.unpack("!II", _exactly(client, 8))
            rest = _exactly(client, length - 8)
            if code not in (_SSL, _GSS):
                break
            client.sendall(b"N")
        given = rest.split(b"\0")
        options = dict(zip(given[::2], given[1::2], strict=False)).get(b"options", b"").decode()
        self._options = options or self._options
        with self._backend(None) as backend:
            told = b"".join(
                _message(b"S", name + b"\0" + value + b"\0")
                for name in (b"server_version", b"client_encoding", b"standard_conforming_strings")
                if (value := backend.pgconn.parameter_status(name))
            )
        client.sendall(_message(b"R", bytes(4)) + told + _message(b"K", bytes(8)) + _READY)
        return backend

    @contextmanager
    def _backend(self, used: Any) -> Iterator[Any]:
        with self._mutex:
            kind = self._target, self._options
            mine = [found for found in self._idle if found[0] == kind and (not self._keeps or found[1] is used)]
            found = (mine[0] if self._rotates else mine[-1]) if mine else None
            if found is not None:
                self._idle.remove(found)
        if found is None:
            found = kind, psycopg.connect(kind[0], options=kind[1], autocommit=True)
            self._backends.append(found[1])
        yield found[1]  # nobody else's after a failure
        with self._mutex:
            self._idle.append(found)


def _run(client: socket.socket, backend: Any, data: bytes) -> bytes:
    """One transaction, which begins with these bytes; the last of its answers, which the client has not got yet."""
    with socket.socket(fileno=os.dup(backend.pgconn.socket)) as server:
        server.setblocking(True)
        server.sendall(data)
        received = b""
        while True:
            for ready in select.select([client, server], [], [])[0]:
                data = ready.recv(1 << 16)
                if not data:
                    raise OSError("one side is gone")
                if ready is client:
                    server.sendall(data)
                else:
                    received = (received + data)[-len(_READY) :]
                    if received == _READY:
                        return data
                    client.sendall(data)


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!I", len(body) + 4) + body


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            raise OSError("the client is gone")
        data += more
    return data
