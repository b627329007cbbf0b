"""A receiver on loopback that behaves, and misbehaves on demand: the path of the URL says how."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Received:
    path: str
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes
    connection: int

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]


class Receiver:
    def __init__(self, server: Server, scheme: str) -> None:
        self._server = server
        self.port: int = server.server_address[1]
        self.url = f"{scheme}://127.0.0.1:{self.port}"

    @property
    def received(self) -> list[Received]:
        return list(self._server.received)

    @property
    def connections(self) -> int:
        return self._server.connections

    def be(self, path: str) -> None:
        """Every request is answered as this path says; empty: as its own path does."""
        self._server.override = path


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.received: list[Received] = []
        self.connections = 0
        self.override = ""
        self.is_over = threading.Event()
        self.mutex = threading.Lock()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that the client has closed."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = TIMEOUT_S
    server: Server

    def setup(self) -> None:
        super().setup()
        with self.server.mutex:
            self.server.connections += 1
            self.number = self.server.connections
        self.handled = 0

    def log_message(self, *given: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        with self.server.mutex:
            self.server.received.append(Received(self.path, headers, body, self.number))
        self.handled += 1
        name, _, given = (self.server.override or self.path).strip("/").partition("/")
        getattr(self, f"be_{name or 'ok'}")(given)

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    # ---- how it may behave

    def be_ok(self, given: str) -> None:
        self.answer(200, b"ok")

    def be_status(self, given: str) -> None:
        self.answer(int(given), b"no, because\r\n\x00of this" if int(given) >= 300 and int(given) != 304 else b"")

    def be_retry_after(self, given: str) -> None:
        self.answer(503, b"", Retry_After=given)

    def be_redirect(self, given: str) -> None:
        self.answer(307, b"", Location="/ok")

    def be_slow(self, given: str) -> None:
        self.server.is_over.wait(float(given))
        self.answer(200)

    def be_hang(self, given: str) -> None:
        self.server.is_over.wait(TIMEOUT_S)
        self.close_connection = True

    def be_reset(self, given: str) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True

    def be_nothing(self, given: str) -> None:
        """Ends the connection without an answer."""
        self.close_connection = True

    def be_dying(self, given: str) -> None:
        """The second request of a connection gets no answer."""
        if self.handled > 1:
            self.be_nothing("")
        else:
            self.be_ok("")

    def be_garbage(self, given: str) -> None:
        self.wfile.write(b"SSH-2.0-OpenSSH_9.6\r\n")
        self.close_connection = True

    def be_long(self, given: str) -> None:
        """A status, and a body without end."""
        self.send_response(int(given))
        self.end_headers()
        with suppress(OSError):
            while not self.server.is_over.is_set():
                self.wfile.write(b"x" * 65_536)
        self.close_connection = True

    def be_drip(self, given: str) -> None:
        """A status, and a body of which one byte comes at a time."""
        self.send_response(int(given))
        self.send_header("Content-Length", "100000")
        self.end_headers()
        self._drip()

    def be_drip_headers(self, given: str) -> None:
        self._drip(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _drip(self, drop: bytes = b"x") -> None:
        with suppress(OSError):
            while not self.server.is_over.wait(0.05):
                self.wfile.write(drop)
        self.close_connection = True


@contextmanager
def receiver(certificate: Path | None = None) -> Iterator[Receiver]:
    """`certificate`: the file of a certificate and its key, for TLS."""
    server = Server()
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, name="receiver", daemon=True)
    thread.start()
    try:
        yield Receiver(server, "https" if certificate else "http")
    finally:
        server.is_over.set()
        server.shutdown()
        server.server_close()
        thread.join(TIMEOUT_S)


def closed_port() -> int:
    """On which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def wait_until(done: Any, timeout_s: float = TIMEOUT_S) -> None:
    give_up_at = time.monotonic() + timeout_s
    while not done():
        assert time.monotonic() < give_up_at, "it has not happened"
        time.sleep(0.01)
