"""A small HTTP server in a daemon's process: its probes, and what is given beside."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from outbox.exceptions import OutboxError
from outbox.service import probes

logger = logging.getLogger("outbox.metrics")

Answer = tuple[int, bytes, str]
"""Status, body, content type."""

TEXT = "text/plain; charset=utf-8"
_REQUEST_S = 10


def address_of(spec: str) -> tuple[str, int]:
    """``9090`` or ``127.0.0.1:9090``; without an address it listens on all of them, as monitoring expects."""
    host, _, port = spec.rpartition(":")
    if not port.isdecimal() or int(port) > 65_535:
        raise OutboxError(f"--metrics-port {spec!r} is not a port. Pass a number up to 65535, or ADDRESS:PORT.")
    return host.strip("[]"), int(port)


@contextmanager
def listening(
    daemon: probes.Probed, spec: str, beside: Callable[[str], Answer | None] = lambda path: None
) -> Iterator[tuple[str, int]]:
    """Serve while the block runs; the address with the real port, which matters where 0 was asked for. `beside` answers
    paths that are no probes."""
    host, port = address_of(spec)
    try:
        server = _Server((host, port), _handler(daemon, beside))
    except OSError as error:
        raise OutboxError(
            f"--metrics-port {spec}: the process cannot listen there: {error.strerror or error}. "
            "Choose another port or address."
        ) from error
    address = server.server_address[0], server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.2,), name="outbox-metrics", daemon=True)
    thread.start()
    logger.info("metrics_served address=%s port=%d", *address)
    try:
        yield str(address[0]), int(address[1])
    finally:
        server.shutdown()
        server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # a slow reader must not hold up the end


def _handler(daemon: probes.Probed, beside: Callable[[str], Answer | None]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = _REQUEST_S

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if found := beside(path):
                self._answer(*found)
            elif probed := probes.answer(path, daemon):
                self._answer(probed[0], probed[1].encode(), TEXT)
            else:
                self._answer(404, b"/metrics, /livez, /readyz\n", TEXT)

        do_HEAD = do_GET

        def _answer(self, status: int, body: bytes, kind: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, format: str, *arguments: Any) -> None:
            """Requests of a monitoring system are no news."""

    return Handler
