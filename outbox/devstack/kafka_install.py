"""Kafka's jars, the command line of a broker, and the records that Kafka's own tool writes when it formats a disk."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from outbox.downloads import cache as store
from outbox.downloads import installs
from outbox.downloads.errors import DevstackError
from outbox.downloads.progress import step

JAVA_OPTIONS = (
    "-XX:TieredStopAtLevel=1",  # short runs: the second compiler costs more than it saves
    "-XX:+UseSerialGC",
    "-Xms64m",
    "-Xmx512m",
    "-Djava.awt.headless=true",
    "-Djava.net.preferIPv4Stack=true",
)
PROJECT = "org.apache.kafka:kafka_2.13"
ENVIRONMENT = {"LC_ALL": "C", "TZ": "UTC", "PATH": "/usr/bin:/bin"}
_LOGGING = Path(__file__).with_name("logging")


@dataclass(frozen=True)
class KafkaInstall:
    line: str  # for instance "4.1"
    version: str  # for instance "4.1.2"
    jars: tuple[Path, ...]

    @property
    def classpath(self) -> str:
        return os.pathsep.join(map(str, self.jars))


def lines() -> list[str]:
    """The available lines, the newest last."""
    return sorted(store.locked()["kafka"], key=lambda line: tuple(map(int, line.split("."))))


@dataclass(frozen=True)
class LockedKafka:
    line: str
    version: str
    jars: tuple[store.Jar, ...]

    @property
    def folder(self) -> Path:
        """Where the main jar is, or will be."""
        name = f"{PROJECT}:{self.version}"
        return store.folder() / "maven" / next(jar.path for jar in self.jars if jar.coordinate == name)


def locked(line: str | None = None) -> LockedKafka:
    """The entry of the lock file for a line; by default the newest."""
    known = lines()
    chosen = line or known[-1]
    if chosen not in known:
        raise DevstackError(f"Kafka {chosen!r} is not available. Choose one of {', '.join(known)}.")
    entry = store.locked()["kafka"][chosen]
    return LockedKafka(chosen, entry["version"], tuple(store.Jar(**jar) for jar in entry["jars"]))


def install(line: str | None = None) -> KafkaInstall:
    known = locked(line)
    return KafkaInstall(known.line, known.version, _jars(f"Kafka {known.version}", known.jars))


@cache
def _jars(name: str, wanted: tuple[store.Jar, ...]) -> tuple[Path, ...]:
    return tuple(store.jars(name, list(wanted)))


def command(found: KafkaInstall, options: Sequence[str], configuration: Path) -> list[str]:
    return [*_java(found, options), "kafka.Kafka", str(configuration)]


def _java(found: KafkaInstall, options: Sequence[str] = ()) -> list[str]:
    logging = [
        f"-Dlog4j.configuration=file:{_LOGGING / 'log4j.properties'}",  # Kafka 3
        f"-Dlog4j2.configurationFile={_LOGGING / 'log4j2.properties'}",  # Kafka 4
    ]
    return [str(installs.java()), *JAVA_OPTIONS, *options, *logging, "-cp", found.classpath]


def bootstrap_checkpoint(found: KafkaInstall) -> bytes:
    """The feature levels of a new cluster, for instance of transactions.

    Without this file a broker starts with fewer features than an ordinary installation has. The file does not depend on
    the single cluster, so Kafka's tool, a Java process of its own, writes it only once.
    """
    place = store.folder() / f"kafka-{found.version}.bootstrap.checkpoint"
    if not place.exists() or not place.stat().st_size:
        with store.exclusively() as root:
            if not place.exists() or not place.stat().st_size:
                _format(found, root, place)
    return place.read_bytes()


def _format(found: KafkaInstall, root: Path, place: Path) -> None:
    with step(f"asking Kafka {found.version} for its feature levels"), store.staging(root) as private:
        configuration = private / "server.properties"
        configuration.write_text(
            "process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@127.0.0.1:1\n"
            "listeners=CLIENT://127.0.0.1:2,CONTROLLER://127.0.0.1:1\ncontroller.listener.names=CONTROLLER\n"
            "inter.broker.listener.name=CLIENT\nlistener.security.protocol.map=CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT\n"
            f"log.dirs={private / 'data'}\n"
        )
        tool = ["kafka.tools.StorageTool", "format", "-t", "AAAAAAAAAAAAAAAAAAAAAQ", "-c", str(configuration)]
        done = subprocess.run([*_java(found), *tool], capture_output=True, text=True, env=ENVIRONMENT)
        if done.returncode:
            raise DevstackError(f"Kafka's storage tool ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        os.replace(private / "data" / "bootstrap.checkpoint", place)
