"""Writes the lock file again: `python -m outbox.devstack lock`.

It takes the newest release of every line in `KAFKA_LINES` and `POSTGRES_MAJORS`, downloads each jar and records its
SHA-256. It writes coordinates only, never the host they came from.
"""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from outbox.downloads import cache, maven
from outbox.downloads.progress import step

# Kafka's jar has the logging facade only: each line gets the backend that its distribution ships.
KAFKA_LINES = {
    "3.9": ["org.slf4j:slf4j-reload4j:1.7.36"],
    "4.1": ["org.apache.logging.log4j:log4j-slf4j-impl:2.25.3"],
}
POSTGRES_MAJORS = ("14", "15", "16", "17", "18")
PLATFORMS = ("linux-amd64", "linux-arm64v8", "darwin-amd64", "darwin-arm64v8")
ZONKY = "io.zonky.test.postgres"


def newest(versions: list[str], line: str) -> str:
    """The newest final release of a line such as 3.9 or 17."""
    wanted = [tuple(map(int, text.split("."))) for text in versions if re.fullmatch(r"\d+(\.\d+)*", text)]
    start = tuple(map(int, line.split(".")))
    return ".".join(map(str, max(version for version in wanted if version[: len(start)] == start)))


def regenerate(target: Path) -> None:
    with cache.exclusively() as root, cache.staging(root) as private:
        content = {
            "kafka": {line: _kafka(line, extra, private) for line, extra in KAFKA_LINES.items()},
            "postgres": {major: _postgres(major, private) for major in POSTGRES_MAJORS},
        }
    target.write_text(json.dumps(content, indent=1) + "\n")


def _kafka(line: str, extra: list[str], private: Path) -> dict[str, Any]:
    version = newest(maven.releases("org.apache.kafka", "kafka_2.13", private), line)
    with step(f"locking Kafka {version}"):
        # One after the other: if they are resolved together, the logging backend can change Kafka's own dependencies.
        needed = maven.resolve([f"org.apache.kafka:kafka_2.13:{version}"], private)
        names = {coordinate.rpartition(":")[0] for coordinate in needed}
        for coordinate in extra:
            needed += [found for found in maven.resolve([coordinate], private) if found.rpartition(":")[0] not in names]
        return {"version": version, "jars": _hash(sorted(needed), private)}


def _postgres(major: str, private: Path) -> dict[str, Any]:
    """By platform, because not every platform has every release."""
    found = {}
    for platform in PLATFORMS:
        name = f"embedded-postgres-binaries-{platform}"
        version = newest(maven.releases(ZONKY, name, private), major)
        with step(f"locking PostgreSQL {version} for {platform}"):
            found[platform] = _hash([f"{ZONKY}:{name}:{version}"], private)[0]
    return found


def _hash(coordinates: list[str], private: Path) -> list[dict[str, str]]:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda coordinate: cache.sha256(maven.download(coordinate, private)), coordinates))
    return [{"coordinate": name, "sha256": digest} for name, digest in zip(coordinates, found, strict=True)]
