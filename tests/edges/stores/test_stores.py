"""What journals rely on, of each kind of store."""

import os
from pathlib import Path

import pytest

from outbox.core.journal.values import ObjectMissing, StoreFailed
from outbox.edges.stores import local, objects
from outbox.edges.stores.local import LocalStore
from outbox.edges.stores.objects import ObjectStore

PATH = "orders/2026/01/02/0192e4b1-0000-7000-8000-000000000001-0000"


@pytest.fixture(params=["local", "memory", "file"])
def store(request, tmp_path):
    if request.param == "local":
        return LocalStore(str(tmp_path / "not" / "yet"))
    return ObjectStore("memory:///" if request.param == "memory" else f"file://{tmp_path}", {})


def written(store, path, *blocks):
    writer = store.create(path)
    for block in blocks:
        writer.write(block)
    writer.finish()
    return writer


def test_an_object_is_what_was_written(store):
    writer = written(store, PATH, b"ab", b"cde")
    assert writer.read(0, 100) == b"abcde"
    assert writer.read(5, 1) == b""
    writer.seal()
    assert store.read(PATH, 1, 2) == b"bc"
    assert store.read(PATH, 4, 1 << 20) == b"e"
    assert store.read(PATH, 5, 1) == b""
    assert store.read(PATH, 5, 1 << 20) == b""
    assert store.get(PATH) == b"abcde"


@pytest.mark.slow
def test_a_large_object_is_what_was_written(store):
    blocks = [os.urandom(1 << 20) for _ in range(2 * objects.PART_BYTES // (1 << 20) + 1)]
    written(store, PATH, *blocks).seal()
    assert store.read(PATH, (9 << 20) - 1, 2) == blocks[8][-1:] + blocks[9][:1]
    assert [store.read(PATH, number << 20, 1 << 20) for number in range(len(blocks))] == blocks


def test_what_is_given_up_has_no_name(store):
    writer = store.create(PATH)
    writer.write(b"abc")
    writer.abort()
    writer.abort()
    with pytest.raises(ObjectMissing):
        store.read(PATH, 0, 3)
    assert list(store.list("orders/")) == []


def test_what_is_not_there_is_missing(store):
    for ask in (lambda: store.read(PATH, 0, 1), lambda: store.read(PATH, 0, 9), lambda: store.get(PATH)):
        with pytest.raises(ObjectMissing):
            ask()
    store.delete(PATH)


def test_a_small_object_is_put_once(store):
    assert store.put("orders/.index/00", b"one")
    assert not store.put("orders/.index/00", b"two")
    assert store.get("orders/.index/00") == b"one"


def test_objects_are_listed_by_the_beginning_of_their_path(store):
    for path in (PATH, f"{PATH[:-4]}0001", "orders/.index/00", "orders-2/x", "other/y"):
        assert store.put(path, b"x")
    assert list(store.list(PATH[:-4])) == [PATH, f"{PATH[:-4]}0001"]
    assert list(store.list("orders/")) == sorted([PATH, f"{PATH[:-4]}0001", "orders/.index/00"])
    assert list(store.list("none/")) == []
    store.delete(PATH)
    store.delete(PATH)
    assert list(store.list(PATH[:-4])) == [f"{PATH[:-4]}0001"]


# ---- a folder


def test_what_a_process_left_unfinished_is_listed_and_deleted(tmp_path):
    store = LocalStore(str(tmp_path))
    written(store, PATH, b"abc")
    (name,) = os.listdir((tmp_path / PATH).parent)
    assert name.startswith(".")
    assert list(store.list(PATH[:-4])) == [PATH]
    store.delete(PATH)
    assert os.listdir((tmp_path / PATH).parent) == []


def test_an_object_is_never_replaced(tmp_path):
    store = LocalStore(str(tmp_path))
    written(store, PATH, b"one").seal()
    second = written(store, PATH, b"two")
    with pytest.raises(StoreFailed, match="is there already"):
        second.seal()
    second.abort()
    assert store.get(PATH) == b"one"
    assert os.listdir((tmp_path / PATH).parent) == [Path(PATH).name]


def test_it_has_its_name_when_it_and_its_folders_are_flushed(tmp_path, monkeypatch):
    done = []
    fsync, link = os.fsync, os.link
    monkeypatch.setattr(local.os, "fsync", lambda fd: (done.append(os.readlink(f"/proc/self/fd/{fd}")), fsync(fd)))
    monkeypatch.setattr(local.os, "link", lambda *paths: (done.append("link"), link(*paths)))
    store = LocalStore(str(tmp_path / "root"))
    written(store, "a/b/c", b"x").seal()
    *folders, file, linked, parent = done
    assert folders == [str(tmp_path), str(tmp_path / "root"), str(tmp_path / "root" / "a")]
    assert Path(file).parent == tmp_path / "root" / "a" / "b"
    assert (linked, parent) == ("link", str(tmp_path / "root" / "a" / "b"))


@pytest.mark.parametrize("number", [28, 30, 5])  # ENOSPC, EROFS, EIO
def test_errors_of_the_system_are_those_of_the_store(tmp_path, monkeypatch, number):
    def fails(*given):
        raise OSError(number, os.strerror(number))

    store = LocalStore(str(tmp_path))
    writer = store.create(PATH)
    monkeypatch.setattr(local.os, "write", fails)
    with pytest.raises(StoreFailed, match=os.strerror(number)):
        writer.write(b"x")
    writer.abort()


# ---- a bucket


def test_a_process_opens_a_store_of_its_own(tmp_path, monkeypatch):
    store = ObjectStore(f"file://{tmp_path}", {})
    first = store._store()
    assert store._store() is first
    monkeypatch.setattr(objects.os, "getpid", lambda: -1)
    assert store._store() is not first
