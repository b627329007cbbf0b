"""The wheel and the source archive: what they contain, and that a package index takes their metadata."""

import email
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import outbox
from tests.support.databases import ROOT
from tests.support.documents import tracked

NAME = f"django_transactional_outbox-{outbox.__version__}"
INFO = f"{NAME}.dist-info"
OF_THE_WHEEL = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"}
# Beside Python. A folder that is new here must be one that the package reads.
DATA = {
    "outbox/py.typed",
    "outbox/contrib/monitoring",
    "outbox/devstack/logging",
    "outbox/downloads/jars.lock.json",
    "outbox/spark/spark.lock.json",
    "outbox/static/outbox",
    "outbox/templates/admin/outbox",
}
OF_THE_SOURCES = {
    ".gitignore",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "PKG-INFO",
    "README.md",
    "SECURITY.md",
    "pyproject.toml",
}


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """The wheel is built from the source archive, which thus has everything that the wheel needs."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {path.name for path in folder.iterdir()} == {f"{NAME}-py3-none-any.whl", f"{NAME}.tar.gz"}
    return folder


def files_of(*folders):
    return {str(path) for path in tracked() if path.parts[0] in folders}


def test_the_wheel_has_the_package_and_nothing_else(dist):
    with zipfile.ZipFile(dist / f"{NAME}-py3-none-any.whl") as wheel:
        found = set(wheel.namelist())
        metadata = email.message_from_bytes(wheel.read(f"{INFO}/METADATA"))
    assert found == files_of("outbox") | {f"{INFO}/{name}" for name in OF_THE_WHEEL}
    data = {name for name in found if name.startswith("outbox/") and not name.endswith(".py")}
    assert {name for name in data if not {name, *map(str, Path(name).parents)} & DATA} == set()
    assert metadata["Version"] == outbox.__version__


def test_the_source_archive_has_the_package_its_documents_and_examples(dist):
    with tarfile.open(dist / f"{NAME}.tar.gz") as archive:
        found = {name.removeprefix(f"{NAME}/") for name in archive.getnames()}
    assert found == files_of("outbox", "docs", "deploy") | OF_THE_SOURCES


def test_a_package_index_takes_the_metadata(dist):
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, dist.iterdir())]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
