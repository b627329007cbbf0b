"""The one request that the devstack sends to Kafka itself, so that it needs no Kafka client: who is in the cluster?"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass

_TIMEOUT_S = 2.0
_METADATA, _VERSION = 3, 2  # the oldest version that returns the cluster's id; every Kafka up to now answers it
_CLIENT_ID = b"devstack"


@dataclass(frozen=True)
class Cluster:
    cluster_id: str | None
    brokers: frozenset[int]


def cluster(host: str, port: int) -> Cluster | None:
    """The cluster as the broker on this port sees it; None when it does not answer."""
    try:
        with socket.create_connection((host, int(port)), timeout=_TIMEOUT_S) as connection:
            head = struct.pack(">hhih", _METADATA, _VERSION, 1, len(_CLIENT_ID)) + _CLIENT_ID
            _send(connection, head + struct.pack(">i", 0))  # no topics
            return _parse(_receive(connection))
    except (OSError, struct.error):
        return None


def _send(connection: socket.socket, frame: bytes) -> None:
    connection.sendall(struct.pack(">i", len(frame)) + frame)


def _receive(connection: socket.socket) -> bytes:
    (size,) = struct.unpack(">i", _exactly(connection, 4))
    return _exactly(connection, size)


def _exactly(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        chunk = connection.recv(size - len(received))
        if not chunk:
            raise ConnectionError("the broker closed the connection")
        received += chunk
    return received


def _parse(answer: bytes) -> Cluster:
    _correlation, count = struct.unpack_from(">ii", answer)
    position, brokers = 8, set()
    for _ in range(count):
        (number,) = struct.unpack_from(">i", answer, position)
        brokers.add(number)
        _host, position = _string(answer, position + 4)
        _rack, position = _string(answer, position + 4)
    cluster_id, _ = _string(answer, position)
    return Cluster(cluster_id, frozenset(brokers))


def _string(answer: bytes, position: int) -> tuple[str | None, int]:
    (size,) = struct.unpack_from(">h", answer, position)
    start = position + 2
    return (None, start) if size < 0 else (answer[start : start + size].decode(), start + size)
