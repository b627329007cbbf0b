"""The cache repairs itself, can be shared, and holds only files of the lock file."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time

import pytest

from outbox.devstack import kafka_install
from outbox.downloads import cache, installs, lock, maven
from outbox.downloads.errors import DevstackError

CONTENT = b"a jar"
JAR = cache.Jar("org.example:thing:1.0", hashlib.sha256(CONTENT).hexdigest())


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """An empty cache, and a stand-in for downloads that counts them."""
    monkeypatch.setenv("OUTBOX_DEVSTACK_CACHE", str(tmp_path / "cache"))
    served = {"content": CONTENT, "downloads": 0}

    def download(coordinate, private):
        served["downloads"] += 1
        target = private / coordinate.replace(":", "-")
        target.write_bytes(served["content"])
        return target

    monkeypatch.setattr(maven, "download", download)
    return served


def test_a_jar_is_downloaded_once(repository):
    (path,) = cache.jars("a thing", [JAR])
    assert path.read_bytes() == CONTENT
    assert cache.jars("a thing", [JAR]) == [path]
    assert repository["downloads"] == 1


@pytest.mark.parametrize("damage", [b"", b"a j", b"another"])
def test_a_cut_or_damaged_file_heals(repository, damage):
    (path,) = cache.jars("a thing", [JAR])
    path.write_bytes(damage)
    cache.jars("a thing", [JAR])
    assert path.read_bytes() == CONTENT


def test_a_file_that_the_lock_file_does_not_know_is_refused(repository):
    repository["content"] = b"something else"
    with pytest.raises(DevstackError, match=f"but the lock file says {JAR.sha256}"):
        cache.jars("a thing", [JAR])
    assert not (cache.folder() / "maven" / JAR.path).exists()
    assert [path.name for path in cache.folder().iterdir()] == [".lock"]


def test_side_by_side_only_one_downloads(repository, monkeypatch):
    slow = maven.download

    def download(coordinate, private):
        time.sleep(0.2)
        return slow(coordinate, private)

    monkeypatch.setattr(maven, "download", download)
    threads = [threading.Thread(target=cache.jars, args=("a thing", [JAR])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert repository["downloads"] == 1


def test_two_processes_fill_one_cache(tmp_path):
    """With the real jars of the present cache, which a resolver reads from there."""
    program = (
        "import pathlib, shutil, sys\n"
        "from outbox.devstack import kafka_install\n"
        "from outbox.downloads import cache, maven\n"
        "source = pathlib.Path(sys.argv[1])\n"
        "def download(coordinate, private):\n"
        "    path = cache.Jar(coordinate, '').path\n"
        "    return shutil.copy(source / path, private / path.name)\n"
        "maven.download = download\n"
        "print(len(kafka_install.install('4.1').jars))\n"
    )
    known = kafka_install.install("4.1")
    source = cache.folder() / "maven"
    environment = {**os.environ, "OUTBOX_DEVSTACK_CACHE": str(tmp_path)}
    both = [
        subprocess.Popen([sys.executable, "-c", program, source], env=environment, stdout=-1, stderr=-1, text=True)
        for _ in range(2)
    ]
    said = [process.communicate(timeout=60) for process in both]
    assert [out.strip() for out, _ in said] == [str(len(known.jars))] * 2, said
    assert sum("downloading" in err for _, err in said) == 1
    assert not list(tmp_path.glob(".staging-*"))


def test_a_damaged_unpacked_postgres_heals(tmp_path, monkeypatch):
    monkeypatch.setenv("OUTBOX_DEVSTACK_CACHE", str(tmp_path))
    archive = installs._archive("14")
    original = _original_cache() / "maven" / archive.path
    (tmp_path / "maven" / archive.path).parent.mkdir(parents=True)
    shutil.copy(original, tmp_path / "maven" / archive.path)
    program = installs.postgres("14").bin / "postgres"
    size = program.stat().st_size
    program.write_bytes(b"")
    assert installs.postgres("14").bin / "postgres" == program
    assert program.stat().st_size == size


def _original_cache():
    """The user's cache, filled."""
    chosen = os.environ.pop("OUTBOX_DEVSTACK_CACHE")
    try:
        installs.postgres("14")
        return cache.folder()
    finally:
        os.environ["OUTBOX_DEVSTACK_CACHE"] = chosen


def test_the_lock_file_names_no_host_and_all_versions():
    text = cache.LOCK_FILE.read_text()
    assert "://" not in text
    content = json.loads(text)
    assert set(content["kafka"]) == set(lock.KAFKA_LINES)
    assert set(content["postgres"]) == set(lock.POSTGRES_MAJORS)
    assert {tuple(platforms) for platforms in content["postgres"].values()} == {lock.PLATFORMS}


def test_the_newest_final_release_of_a_line_is_chosen():
    assert lock.newest(["4.1.0", "4.1.10", "4.1.9", "4.10.0", "4.1.11-rc1"], "4.1") == "4.1.10"


def test_an_unreachable_repository_is_an_error_with_its_remedy(tmp_path, monkeypatch):
    import requests

    def refuse(*_, **__):
        raise requests.ConnectionError("no route")

    monkeypatch.setattr(requests, "request", refuse)
    monkeypatch.setattr(maven.time, "sleep", lambda _: None)
    with pytest.raises(DevstackError, match=r"could not download .* in 4 attempts: no route"):
        maven.download("org.example:thing:1.0", tmp_path)
