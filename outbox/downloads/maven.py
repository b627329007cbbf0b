"""jgo, the Maven resolver written in Python. It says which jars a program needs, and downloads one of them.

jgo writes directly to the final file, takes any file there for complete, and only warns of a wrong checksum. So it gets
a private folder, and the caller verifies the result.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

from outbox.downloads.errors import DevstackError
from outbox.exceptions import missing_extra

_ATTEMPTS_MAX = 4
_TIMEOUT_S = 30


def _context(repository: Path) -> Any:
    try:
        from jgo.config import GlobalSettings
        from jgo.constants import MAVEN_CENTRAL_URL
        from jgo.maven import MavenContext, PythonResolver
    except ImportError as error:
        missing_extra("devstack", error)
    # The repositories of the user's jgo configuration are used too: a mirror is named there.
    remote = {"central": MAVEN_CENTRAL_URL, **GlobalSettings.load().repositories}
    return MavenContext(
        resolver=PythonResolver(), repo_cache=repository, local_repos=[], remote_repos=remote, timeout=_TIMEOUT_S
    )


def download(coordinate: str, private: Path) -> Path:
    """Download one jar into a private folder."""
    group, artifact, version = coordinate.split(":")
    component = _context(private).project(group, artifact).at_version(version)
    for attempt in range(1, _ATTEMPTS_MAX + 1):
        try:
            return Path(component.artifact(packaging="jar").resolve())
        except (OSError, RuntimeError) as error:  # requests' errors are OSErrors
            shutil.rmtree(private / component.path_prefix, ignore_errors=True)
            if attempt == _ATTEMPTS_MAX:
                raise DevstackError(
                    f"The devstack could not download {coordinate} in {_ATTEMPTS_MAX} attempts: {error}. Check the "
                    "network, name a mirror in jgo's configuration, or set OUTBOX_DEVSTACK_CACHE to a filled cache."
                ) from error
            time.sleep(0.5 * 2**attempt)
    raise AssertionError("unreachable")


def resolve(coordinates: list[str], private: Path) -> list[str]:
    """The coordinates of all jars that are needed at run time."""
    from jgo.parse import Coordinate

    context = _context(private)
    asked = [context.create_dependency(Coordinate.parse(text)) for text in coordinates]
    inputs, transitive = context.resolver.resolve(asked)
    needed = [*inputs, *(found for found in transitive if found.scope in ("compile", "runtime"))]
    return sorted({f"{found.groupId}:{found.artifactId}:{found.version}" for found in needed})


def releases(group: str, artifact: str, private: Path) -> list[str]:
    """The versions that the repository lists."""
    project = _context(private).project(group, artifact)
    project.update()
    return [str(version) for version in project.metadata.versions]
