"""`manage.py outbox_journal`."""

import io
import json
from io import StringIO
from types import SimpleNamespace

import pytest
from django.core.management import CommandError, call_command

from outbox import journal
from outbox.management.commands import outbox_journal
from tests.journal.test_api import rows, suspect, whole


def run(*arguments, **options):
    out, err = StringIO(), StringIO()
    call_command("outbox_journal", *map(str, arguments), stdout=out, stderr=err, **options)
    return out.getvalue() + err.getvalue()


def test_journals_are_listed_with_what_is_wrong(name):
    journal.append(name, b"abc")
    assert run("list") == f"{name}: 3 bytes\n"
    journal.change(name, read_only=True)
    suspect(name, "Why.")
    assert run("list") == f"{name}: 3 bytes, read-only, suspect: Why.\n"


def test_a_journal_is_shown(name):
    journal.append(name, b"abc", set={"author": "a"})
    found = json.loads(run("show", name))
    assert (found["head"], found["registers"], found["replicas"]) == (3, {"author": "a"}, 2)
    assert found["chain"] == journal.show(name).chain.hex()


def test_files_and_input_are_appended(name, tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"abc")
    assert run("append", name, tmp_path / "file") == "0 3\n"
    monkeypatch.setattr(outbox_journal.sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"def")))
    assert run("append", name) == "3 6\n"
    assert whole(name) == b"abcdef"
    with pytest.raises(CommandError, match="No such file"):
        run("append", name, tmp_path / "none")


def test_a_range_is_read(name, capsysbinary):
    journal.append(name, b"abcdef")
    run("read", name, "--offset", 1, "--end", 4)
    assert capsysbinary.readouterr().out == b"bcd"


def test_errors_are_those_of_journals(name):
    for action in ("show", "append", "read"):
        with pytest.raises(CommandError, match="There is no journal 'none'"):
            run(action, "none")


def test_the_head_is_set_after_a_confirmation(name, monkeypatch, capsysbinary):
    journal.append(name, b"abc")
    suspect(name)
    for answer in ("", "other"):
        monkeypatch.setattr("builtins.input", lambda question, answer=answer: answer)
        with pytest.raises(CommandError, match="The head stays"):
            run("reset-head", name, "--offset", 9)
    assert journal.show(name).head == 3
    with pytest.raises(CommandError, match="was used already"):
        run("reset-head", name, "--offset", 2, "--yes")
    monkeypatch.setattr("builtins.input", lambda question: name)
    assert "has bytes 3 to 9" in run("reset-head", name, "--offset", 9)
    assert rows("SELECT suspect FROM outbox_journal") == [("",)]
    journal.append(name, b"d")
    assert "bytes 3 to 9 are gone" in run("read", name)
    assert capsysbinary.readouterr().out == b"abcd"
