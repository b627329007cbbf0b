"""Apache Kafka on loopback ports: one or three brokers in KRaft's combined mode, on the Java of a wheel.

Each broker has three listeners. CLIENT is for clients; its advertised port can be another one (a proxy's). INTERNAL is
for the brokers among themselves and for the devstack's own questions, CONTROLLER for the quorum.
"""

from __future__ import annotations

import base64
import signal
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

from outbox.devstack import kafka_install, ports, wire
from outbox.devstack.folders import dispose, new_folder
from outbox.devstack.processes import ServerProcess, wait_until
from outbox.downloads import installs
from outbox.downloads.errors import DevstackError, StartError

_START_TIMEOUT_S = 180.0  # for a server that neither ends nor becomes ready, as on an overloaded machine
_STOP_TIMEOUT_S = 20.0
_PROTOCOLS = ",".join(f"{listener}:PLAINTEXT" for listener in ("CLIENT", "INTERNAL", "CONTROLLER"))
DEFAULTS = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "INTERNAL",
    "listener.security.protocol.map": _PROTOCOLS,
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "5",
    "transaction.state.log.num.partitions": "5",
    "share.coordinator.state.topic.num.partitions": "5",
    "num.network.threads": "2",
    "num.io.threads": "4",
    "log.cleaner.dedupe.buffer.size": "8388608",  # 128 MiB of the small heap otherwise
    "controller.quorum.election.timeout.ms": "250",
    "controller.quorum.election.backoff.max.ms": "250",
    # Kafka lets a killed broker in again only when its old session is over.
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "400",
    "controlled.shutdown.max.retries": "1",
}


class Broker:
    """One server process: broker and controller."""

    def __init__(self, cluster: Kafka, number: int, advertised_port: int | None) -> None:
        self.cluster = cluster
        self.number = number
        self.port, self.internal_port, self.controller_port = ports.reserve(), ports.reserve(), ports.reserve()
        self.advertised_port = advertised_port
        self.folder = cluster.folder / f"broker-{number}"
        self.log = cluster.folder / f"kafka-{number}.log"
        self.process: ServerProcess | None = None

    @property
    def address(self) -> str:
        return f"{ports.HOST}:{int(self.port)}"

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.is_running

    def start(self, *, wait: bool = True) -> Broker:
        if not self.is_running:
            self._prepare()
            argv = kafka_install.command(self.cluster.install, self.cluster.java_options, self._configuration)
            log, env = self.log, kafka_install.ENVIRONMENT
            self.process = ServerProcess(argv, cwd=self.folder, log=log, env=env, quit_signal=signal.SIGKILL)
        if wait:
            self.wait_ready()
        return self

    def wait_ready(self) -> None:
        """Wait until the broker answers and sees every broker that runs."""
        process = self._running()
        wait_until(lambda: self._sees_its_peers() or not process.is_running, _START_TIMEOUT_S)
        if not self._sees_its_peers():
            code = process.poll()
            self._fail(
                f"the process ended with {code}"
                if code is not None
                else f"it was not ready within {_START_TIMEOUT_S:g} s"
            )

    def stop(self) -> None:
        """Controlled shutdown: leaderships move first."""
        if self.process is None:
            return
        self.process.signal(signal.SIGCONT)
        self.process.signal(signal.SIGTERM)
        if not self.process.wait(_STOP_TIMEOUT_S):
            self.process.kill()
        self.process = None

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process = None

    def restart(self) -> Broker:
        self.stop()
        return self.start()

    def pause(self) -> None:
        """SIGSTOP: connections stay open, and the broker does not answer."""
        self._running().pause()

    def resume(self) -> None:
        self._running().signal(signal.SIGCONT)

    @property
    def _configuration(self) -> Path:
        return self.folder / "server.properties"

    def _running(self) -> ServerProcess:
        if self.process is None:
            raise DevstackError(f"Broker {self.number} is not started. Call start().")
        return self.process

    def _sees_its_peers(self) -> bool:
        answer = wire.cluster(ports.HOST, self.internal_port)
        expected = {broker.number for broker in self.cluster.brokers if broker.process is not None}
        # After a kill the survivors need time for elections: so wait for every broker that runs, and no more.
        return answer is not None and answer.cluster_id == self.cluster.cluster_id and expected <= answer.brokers

    def _prepare(self) -> None:
        """Write the configuration; format the storage at the first start as Kafka's own tool does."""
        storage = self.folder / "data"
        if not (storage / "meta.properties").exists():
            storage.mkdir(parents=True, exist_ok=True)
            features = kafka_install.bootstrap_checkpoint(self.cluster.install)
            (storage / "bootstrap.checkpoint").write_bytes(features)
            identity = {"version": "1", "cluster.id": self.cluster.cluster_id, "node.id": str(self.number)}
            _write(storage / "meta.properties", {**identity, "directory.id": _random_id()})
        _write(self._configuration, self._properties(storage))

    def _properties(self, storage: Path) -> dict[str, str]:
        peers = self.cluster.brokers
        copies = str(min(3, len(peers)))
        listeners = {"CLIENT": self.port, "INTERNAL": self.internal_port}
        return {
            **DEFAULTS,
            "node.id": str(self.number),
            "log.dirs": str(storage),
            "listeners": _listeners({**listeners, "CONTROLLER": self.controller_port}),
            "advertised.listeners": _listeners({**listeners, "CLIENT": self.advertised_port or self.port}),
            "controller.quorum.voters": ",".join(
                f"{peer.number}@{ports.HOST}:{int(peer.controller_port)}" for peer in peers
            ),
            "default.replication.factor": copies,
            "min.insync.replicas": "2" if len(peers) >= 3 else "1",
            "offsets.topic.replication.factor": copies,
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": "2" if len(peers) >= 3 else "1",
            "share.coordinator.state.topic.replication.factor": copies,
            "share.coordinator.state.topic.min.isr": "1",
            **self.cluster.properties,
        }

    def _fail(self, reason: str) -> None:
        self.cluster.give_up()
        raise StartError(
            f"Broker {self.number} of Kafka {self.cluster.version} did not start on port {int(self.port)}: {reason}.",
            self.log,
        )


class Kafka:
    """A cluster with its own data; start, kill and restart keep the data and the ports."""

    def __init__(
        self,
        version: str | None = None,
        *,
        brokers: int = 1,
        properties: Mapping[str, str] | None = None,
        advertised_port: int | Sequence[int] | None = None,
        java_options: Sequence[str] = (),
        folder: Path | None = None,
    ) -> None:
        if brokers not in (1, 3):
            raise DevstackError(
                f"brokers is {brokers}. Set 3 for a quorum that survives a loss, or 1 for the small one."
            )
        self.requested_version = version
        self.properties = dict(properties or {})
        self.java_options = tuple(java_options)
        self.cluster_id = _random_id()
        self._own_folder = folder is None
        self.folder = folder or new_folder("kafka")
        advertised = [advertised_port] if isinstance(advertised_port, int) else list(advertised_port or ())
        if advertised and len(advertised) != brokers:
            raise DevstackError(
                f"advertised_port names {len(advertised)} ports for {brokers} brokers. Set one for each broker."
            )
        self.brokers = [
            Broker(self, number, advertised[number - 1] if advertised else None) for number in range(1, brokers + 1)
        ]
        self._install: kafka_install.KafkaInstall | None = None

    @property
    def install(self) -> kafka_install.KafkaInstall:
        if self._install is None:
            self._install = kafka_install.install(self.requested_version)
        return self._install

    @property
    def version(self) -> str:
        return self.install.version

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(broker.address for broker in self.brokers)

    @property
    def pids(self) -> list[int]:
        return [broker.process.pid for broker in self.brokers if broker.process is not None and broker.is_running]

    @property
    def is_running(self) -> bool:
        return bool(self.pids)

    def start(self) -> Kafka:
        """Start all brokers and wait until each sees all."""
        kafka_install.bootstrap_checkpoint(self.install)  # once, before the brokers ask for it at the same time
        for broker in self.brokers:
            broker.start(wait=False)
        for broker in self.brokers:
            broker.wait_ready()
        return self

    def stop(self) -> None:
        with ThreadPoolExecutor(len(self.brokers)) as pool:
            list(pool.map(Broker.stop, self.brokers))

    def kill(self) -> None:
        for broker in self.brokers:
            broker.kill()

    def restart(self) -> Kafka:
        self.stop()
        return self.start()

    def pause(self) -> None:
        for broker in self.brokers:
            broker.pause()

    def resume(self) -> None:
        for broker in self.brokers:
            broker.resume()

    def discard(self, *, keep_log: bool = False) -> None:
        """Stop without saving the data, and remove it."""
        self.kill()
        for broker in self.brokers:
            for port in (broker.port, broker.internal_port, broker.controller_port):
                port.release()
        if self._own_folder:
            dispose(self.folder, self.logs if keep_log else [])

    def give_up(self) -> None:
        """After a failed start: end all brokers, keep the logs."""
        self.kill()
        if self._own_folder:
            dispose(self.folder, self.logs)

    @property
    def logs(self) -> list[Path]:
        return [broker.log for broker in self.brokers]

    def __enter__(self) -> Kafka:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.discard(keep_log=kind is not None)


def java_home() -> Path:
    return installs.java().parents[1]


def _listeners(by_name: Mapping[str, int]) -> str:
    return ",".join(f"{name}://{ports.HOST}:{int(port)}" for name, port in by_name.items())


def _random_id() -> str:
    """Kafka's form of a UUID; a leading dash would look like an option."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text


def _write(path: Path, properties: Mapping[str, str]) -> None:
    path.write_text("".join(f"{name}={_escaped(value)}\n" for name, value in properties.items()))


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n")
