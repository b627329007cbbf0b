"""A TCP proxy for fault tests: cuts, delays, drops and holds by direction, and by kind of Kafka request.

    with Proxy(target=postgres.port) as proxy:
        proxy.hold(TO_SERVER)          # bytes wait in the proxy
        proxy.cut(CLIENT)              # the client is gone, with a reset
        proxy.release(TO_SERVER)       # and now its bytes still arrive: the late frame

    with Proxy(target=broker.port, kafka=True) as proxy:
        rule = proxy.on_request(END_TXN, HOLD)   # the next one
        rule.wait()                              # it was sent
        rule.release()

Everything is read at once into unbounded queues, one per direction, so that what a client wrote before it died is in
the proxy's hands. A Kafka broker tells clients where to connect: give it the proxy's port as `advertised_port`.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit, urlunsplit

HOST = "127.0.0.1"
Direction = Literal["to server", "to client"]
TO_SERVER: Direction = "to server"
TO_CLIENT: Direction = "to client"
Side = Literal["client", "server", "both"]
CLIENT: Side = "client"
SERVER: Side = "server"
BOTH: Side = "both"

PRODUCE, FETCH, METADATA, FIND_COORDINATOR, HEARTBEAT, JOIN_GROUP = 0, 1, 3, 10, 12, 11
API_VERSIONS, INIT_PRODUCER_ID, ADD_PARTITIONS_TO_TXN, END_TXN = 18, 22, 24, 26

Action = Literal["pass", "drop", "hold", "cut"]
PASS: Action = "pass"
DROP: Action = "drop"
HOLD: Action = "hold"
CUT: Action = "cut"


@dataclass(frozen=True)
class Frame:
    """One Kafka request or reply; `data` includes the length prefix."""

    direction: Direction
    api_key: int | None  # of a reply: of the request that it answers; None when that was not seen
    correlation_id: int
    data: bytes


class Rule:
    """What happens to the next `times` frames of one kind; `seen` counts them."""

    def __init__(self, proxy: Proxy, direction: Direction, api_key: int, action: Action, times: int | None) -> None:
        self.direction, self.api_key, self.action = direction, api_key, action
        self.seen = 0
        self.frames: list[Frame] = []
        self.links: list[_Link] = []
        self._proxy = proxy
        self._left = times
        self._happened = threading.Condition()
        self._gate = asyncio.Event()
        self._dropped = False

    def matches(self, frame: Frame) -> bool:
        return self._left != 0 and (frame.direction, frame.api_key) == (self.direction, self.api_key)

    def take(self, frame: Frame, link: _Link) -> None:
        with self._happened:
            self.links.append(link)
            self._left = None if self._left is None else self._left - 1
            self.seen += 1
            self.frames.append(frame)
            self._happened.notify_all()

    def wait(self, times: int = 1, timeout_s: float = 30) -> None:
        """Until the rule has met that many frames."""
        with self._happened:
            met = self._happened.wait_for(lambda: self.seen >= times, timeout_s)
        assert met, f"{self.seen} of {times} frames of api {self.api_key} {self.direction} within {timeout_s} s"

    def cut(self, side: Side = BOTH) -> None:
        """End the connections of the frames that it has met, and no others."""
        self._proxy.do(lambda: [link.cut(side, reset=True) for link in self.links])

    def release(self) -> None:
        """End the rule and let pass what it holds."""
        self._end(dropped=False)

    def drop(self) -> None:
        """End the rule and forget what it holds."""
        self._end(dropped=True)

    def _end(self, *, dropped: bool) -> None:
        def end() -> None:
            self._left = 0
            self._dropped = dropped
            self._gate.set()

        self._proxy.do(end)

    async def decide(self) -> bool:
        """Whether the held frame goes on, once that is known."""
        await self._gate.wait()
        return not self._dropped


@dataclass
class _Item:
    data: bytes
    due: float = 0.0
    rule: Rule | None = None


class _Pump:
    """One direction of one connection."""

    def __init__(self, link: _Link, direction: Direction, source: socket.socket, sink: socket.socket) -> None:
        self.link, self.direction, self.source, self.sink = link, direction, source, sink
        self.queue: deque[_Item | None] = deque()  # None: the source has ended
        self.filled = asyncio.Event()
        self._partial = b""

    @property
    def proxy(self) -> Proxy:
        return self.link.proxy

    async def read(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while received := await loop.sock_recv(self.source, 65536):
                for data in self._split(received):
                    self._admit(data)
        except OSError:
            pass
        self._put(None)

    def _split(self, received: bytes) -> list[bytes]:
        if not self.proxy.kafka:
            return [received]
        self._partial += received
        frames = []
        while len(self._partial) >= 4:
            size = 4 + struct.unpack_from(">i", self._partial)[0]
            if len(self._partial) < size:
                break
            frames.append(self._partial[:size])
            self._partial = self._partial[size:]
        return frames

    def _admit(self, data: bytes) -> None:
        due = asyncio.get_running_loop().time() + self.proxy.delay_s[self.direction]
        rule, data = self._rule(data) if self.proxy.kafka else (None, data)
        if rule is None or rule.action == PASS:
            self._put(_Item(data, due))
        elif rule.action == HOLD:
            self._put(_Item(data, due, rule))
        elif rule.action == CUT:
            self.link.cut(BOTH, reset=True)

    def _rule(self, data: bytes) -> tuple[Rule | None, bytes]:
        frame = self.link.frame(self.direction, data)
        if self.proxy.edit is not None:
            data = self.proxy.edit(frame)
        if self.proxy.hook is not None:
            self.proxy.hook(frame)
        for rule in self.proxy.rules:
            if rule.matches(frame):
                rule.take(frame, self.link)
                return rule, data
        return None, data

    def _put(self, item: _Item | None) -> None:
        self.queue.append(item)
        self.filled.set()

    async def write(self) -> None:
        while (item := await self._next()) is not None:
            if await self._may_go(item):
                try:
                    await asyncio.get_running_loop().sock_sendall(self.sink, item.data)
                except OSError:
                    return
        try:
            self.sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    async def _next(self) -> _Item | None:
        while not self.queue:
            self.filled.clear()
            await self.filled.wait()
        return self.queue.popleft()

    async def _may_go(self, item: _Item) -> bool:
        await asyncio.sleep(max(0.0, item.due - asyncio.get_running_loop().time()))
        if item.rule is not None and not await item.rule.decide():
            return False
        await self.proxy.gates[self.direction].wait()
        return not self.proxy.dropping[self.direction]


class _Link:
    """One connection through the proxy."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self.proxy, self.client, self.server = proxy, client, server
        self.asked: dict[int, int] = {}  # api key by correlation id
        self.pumps = (_Pump(self, TO_SERVER, client, server), _Pump(self, TO_CLIENT, server, client))

    def frame(self, direction: Direction, data: bytes) -> Frame:
        if direction == TO_SERVER:
            api_key, _version, correlation = struct.unpack_from(">hhi", data, 4)
            self.asked[correlation] = api_key
            return Frame(direction, api_key, correlation, data)
        (correlation,) = struct.unpack_from(">i", data, 4)
        return Frame(direction, self.asked.pop(correlation, None), correlation, data)

    async def serve(self) -> None:
        loop = asyncio.get_running_loop()
        readers = [loop.create_task(pump.read()) for pump in self.pumps]
        try:
            # Writers end last: what was taken from a client that has gone may still be on its way.
            await asyncio.gather(*(pump.write() for pump in self.pumps))
        finally:
            for reader in readers:
                reader.cancel()
            await asyncio.gather(*readers, return_exceptions=True)

    def cut(self, side: Side, *, reset: bool) -> None:
        for name, end in ((CLIENT, self.client), (SERVER, self.server)):
            if side in (name, BOTH):
                _cut(end, reset=reset)


def _cut(end: socket.socket, *, reset: bool) -> None:
    """End a connection while its reader is still registered with the loop, hence without close()."""
    try:
        if reset:
            # Connecting a stream socket to no address at all is how a reset is sent without closing the descriptor.
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            _disconnect(end)
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass


def _disconnect(end: socket.socket) -> None:
    import ctypes

    nowhere = struct.pack("=H14x", socket.AF_UNSPEC)
    ctypes.CDLL(None, use_errno=True).connect(end.fileno(), nowhere, len(nowhere))


class Proxy:
    """Listens on a loopback port; every connection goes on to `target`, a port, which may be set later."""

    def __init__(self, target: int | None = None, *, port: int = 0, kafka: bool = False) -> None:
        self.target = target
        self.kafka = kafka
        self.hook: Callable[[Frame], None] | None = None
        self.edit: Callable[[Frame], bytes] | None = None
        """What goes on in place of a Kafka frame: as long as it, or with a length prefix of its own."""
        self.refusing = False
        self.accepted = 0
        self.rules: list[Rule] = []
        self.links: set[_Link] = set()
        self.delay_s: dict[Direction, float] = {TO_SERVER: 0.0, TO_CLIENT: 0.0}
        self.dropping: dict[Direction, bool] = {TO_SERVER: False, TO_CLIENT: False}
        self.gates: dict[Direction, asyncio.Event] = {TO_SERVER: asyncio.Event(), TO_CLIENT: asyncio.Event()}
        for gate in self.gates.values():
            gate.set()
        self._listener = socket.create_server((HOST, port))
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"proxy {self.port}", daemon=True)
        self._serving: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def rewrite(self, url: str) -> str:
        """The address of a database, by way of the proxy."""
        parts = urlsplit(url)
        account = parts.netloc.rpartition("@")[0]
        return urlunsplit(parts._replace(netloc=f"{account}@{self.address}" if account else self.address))

    def __enter__(self) -> Proxy:
        self._thread.start()
        self.do(lambda: self._loop.add_reader(self._listener, self._accept))
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def do(self, action: Callable[[], Any]) -> Any:
        """Run in the proxy's thread and wait for the result."""
        if threading.current_thread() is self._thread:
            return action()
        done: Future[Any] = Future()

        def act() -> None:
            try:
                done.set_result(action())
            except BaseException as error:
                done.set_exception(error)

        self._loop.call_soon_threadsafe(act)
        return done.result(10)

    # Faults, for all present and future connections.

    def cut(self, side: Side = BOTH, *, reset: bool = True) -> int:
        """End the present connections, by reset or by FIN; the number of them."""

        def cut() -> int:
            for link in self.links:
                link.cut(side, reset=reset)
            return len(self.links)

        count: int = self.do(cut)
        return count

    def refuse(self) -> None:
        """Reset new connections, as a port does on which nobody listens."""
        self.refusing = True

    def accept(self) -> None:
        self.refusing = False

    def delay(self, direction: Direction, seconds: float) -> None:
        self.delay_s[direction] = seconds

    def drop(self, direction: Direction) -> None:
        """Swallow every byte from now on; connections stay open. A dropped stream is broken: cut it afterwards."""
        self.dropping[direction] = True

    def hold(self, direction: Direction) -> None:
        """Keep every byte in the proxy until `release()`."""
        self.do(self.gates[direction].clear)

    def release(self, direction: Direction) -> None:
        self.do(self.gates[direction].set)

    def heal(self) -> None:
        """End all faults; what is held goes on."""

        def heal() -> None:
            for rule in self.rules:
                rule.release()
            self.rules.clear()
            self.edit = None
            self.refusing = False
            for direction in (TO_SERVER, TO_CLIENT):
                self.delay_s[direction] = 0.0
                self.dropping[direction] = False
                self.gates[direction].set()

        self.do(heal)

    def held(self, direction: Direction) -> int:
        """How many bytes wait in the proxy, besides those already at the gate."""

        def count() -> int:
            pumps = [pump for link in self.links for pump in link.pumps if pump.direction == direction]
            return sum(len(item.data) for pump in pumps for item in pump.queue if item is not None)

        found: int = self.do(count)
        return found

    # Faults by kind of Kafka frame.

    def on_request(self, api_key: int, action: Action, *, times: int | None = 1) -> Rule:
        return self._add(Rule(self, TO_SERVER, api_key, action, times))

    def on_reply(self, api_key: int, action: Action, *, times: int | None = 1) -> Rule:
        """The request is served; its reply passes, waits, is lost, or cuts the connection in its place."""
        return self._add(Rule(self, TO_CLIENT, api_key, action, times))

    def _add(self, rule: Rule) -> Rule:
        assert self.kafka, "rules on frames need Proxy(kafka=True)"
        self.do(lambda: self.rules.append(rule))
        return rule

    # Serving.

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError:
            return  # it has gone already
        self.accepted += 1
        task = self._loop.create_task(self._connect(client))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        task.add_done_callback(lambda _: client.close())  # also when it is cancelled before its first step

    async def _connect(self, client: socket.socket) -> None:
        with client, socket.socket() as server:
            client.setblocking(False)
            server.setblocking(False)
            try:
                if self.refusing or self.target is None:
                    raise ConnectionRefusedError
                await self._loop.sock_connect(server, (HOST, int(self.target)))
            except OSError:
                _cut(client, reset=True)
                return
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link = _Link(self, client, server)
            self.links.add(link)
            try:
                await link.serve()
            finally:
                self.links.discard(link)

    async def _end(self) -> None:
        self._loop.remove_reader(self._listener)
        tasks = list(self._serving)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._listener.close()
