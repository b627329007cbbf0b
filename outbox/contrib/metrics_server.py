"""``/metrics``, ``/livez`` and ``/readyz`` of a harvest process, on a port of their own.

A process is ready when both servers have answered and it takes part in the election, as owner or standby.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from outbox.contrib.prometheus import Sampler, exposition, registry_of
from outbox.exceptions import OutboxError
from outbox.service import probes

logger = logging.getLogger("outbox.metrics")

_TEXT = "text/plain; charset=utf-8"
_METRICS = "text/plain; version=0.0.4; charset=utf-8"
_REQUEST_S = 10


def address_of(spec: str) -> tuple[str, int]:
    """Parse ``9090`` or ``127.0.0.1:9090``. Without an address the server listens on all of them."""
    host, _, port = spec.rpartition(":")
    if not port.isdecimal() or int(port) > 65_535:
        raise OutboxError(f"--metrics-port {spec!r} is not a port. Pass a number up to 65535, or ADDRESS:PORT.")
    return host.strip("[]"), int(port)


@contextmanager
def serving(harvester: Any, spec: str) -> Iterator[tuple[str, int]]:
    """Serve while the block runs. Yield the address with the real port, also where the caller asked for port 0."""
    sampler = Sampler(harvester)
    registry = registry_of(harvester, sampler)
    host, port = address_of(spec)
    try:
        server = _Server((host, port), _handler(harvester, registry))
    except OSError as error:
        raise OutboxError(
            f"--metrics-port {spec}: the harvester cannot listen there: {error.strerror or error}. Choose another "
            "port or address."
        ) from error
    address = server.server_address[0], server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.2,), name="outbox-metrics", daemon=True)
    thread.start()
    sampler.start()
    logger.info("metrics_served address=%s port=%d", *address)
    try:
        yield str(address[0]), int(address[1])
    finally:
        sampler.stop()
        server.shutdown()
        server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # a slow reader must not delay the stop


def _handler(harvester: Any, registry: Any) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = _REQUEST_S

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/metrics":
                self._expose()
            elif found := probes.answer(path, harvester):
                self._answer(found[0], found[1].encode())
            else:
                self._answer(404, b"/metrics, /livez, /readyz\n")

        do_HEAD = do_GET

        def _expose(self) -> None:
            try:
                body = exposition(registry)
            except Exception as error:
                self._answer(500, f"{type(error).__name__}: see the log\n".encode())
                logger.exception("metrics_failed")
            else:
                self._answer(200, body, _METRICS)

        def _answer(self, status: int, body: bytes, kind: str = _TEXT) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, format: str, *arguments: Any) -> None:
            """Log no requests of a monitoring system."""

    return Handler
