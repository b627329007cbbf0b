"""The log: every event is catalogued and documented, no payload reaches it, and a project may redact the rest."""

import ast
import json
import logging
import logging.config
import os
import re

import pytest

from outbox import logs
from tests.support.databases import ROOT
from tests.support.log_lines import calls, events, sources

DOCUMENT = ROOT / "docs" / "logs.md"
ROW = re.compile(r"^\| `([a-z_]+)` \|.*\|\n", re.MULTILINE)
PAYLOAD = {"kafka_value", "kafka_value_binary", "value", "values", "payload", "headers", "row", "rows", "record"}


def table():
    """The rows of docs/logs.md, in the order of the catalogue."""
    found = events()
    lines = []
    for name, meaning in logs.EVENTS.items():
        event = found.get(name)
        if event is not None:
            fields = ", ".join(f"`{field}`" for field in event.fields)
            lines.append(f"| `{name}` | {', '.join(sorted(event.levels))} | {fields} | {meaning} |\n")
    return "".join(lines)


def test_every_event_in_the_source_is_in_the_catalogue():
    """When this fails: say in `outbox.logs.EVENTS` what the new event means."""
    found = events()
    assert len(found) > 50
    unknown = {name: sorted(event.files) for name, event in found.items() if name not in logs.EVENTS}
    assert not unknown, f"not in outbox.logs.EVENTS: {unknown}"
    assert not logs.EVENTS.keys() - found.keys(), "in outbox.logs.EVENTS, but nothing says so any more"
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", name) for name in found)


def test_the_document_lists_what_the_source_says():
    """When this fails: WRITE_DOCS=1 pytest tests/test_logs.py"""
    text = DOCUMENT.read_text()
    if os.environ.get("WRITE_DOCS"):
        start, end = ROW.search(text).start(), [found.end() for found in ROW.finditer(text)][-1]
        text = text[:start] + table() + text[end:]
        DOCUMENT.write_text(text)
    assert "".join(found[0] for found in ROW.finditer(text)) == table()


def test_no_call_hands_a_payload_to_the_log():
    for path in sources():
        for _, call in calls(path):
            for argument in [*call.args, *(keyword.value for keyword in call.keywords)]:
                inner = [node for node in ast.walk(argument) if isinstance(node, ast.Attribute | ast.Name)]
                used = {node.attr if isinstance(node, ast.Attribute) else node.id for node in inner}
                used -= (
                    {"record"}
                    if any(isinstance(node, ast.Attribute) and node.attr == "pk" for node in inner)
                    else set()
                )
                assert not used & PAYLOAD, f"{path.name}:{call.lineno} logs {used & PAYLOAD}"


@pytest.mark.parametrize(
    ("line", "fields"),
    [
        ("waiting_over", {}),
        ("lane_taken lane=3 batch=17 after_s=0.125", {"lane": 3, "batch": 17, "after_s": 0.125}),
        ("waiting reason='a \\'b\\' c=d'", {"reason": "a 'b' c=d"}),
        ("group_not_left name=shop: the brokers remove the member", {"name": "shop"}),
        (
            "record_held lane=0 id=7 key=('orders', '4 2') attempts=1",
            {"lane": 0, "id": 7, "key": ("orders", "4 2"), "attempts": 1},
        ),
        ("not_purged lane=0 ids=[1, 2]", {"lane": 0, "ids": [1, 2]}),
    ],
)
def test_a_line_is_taken_apart(line, fields):
    assert logs.take_apart(line) == (line.split()[0], fields)


def record(message, *arguments, name="outbox.harvest", error=None):
    exc_info = (type(error), error, None) if error else None
    return logging.LogRecord(name, logging.WARNING, "f.py", 1, message, arguments, exc_info)


def test_json_has_the_fields_and_the_line():
    text = logs.JsonFormatter().format(record("lane_taken lane=%d after_s=%.3f", 3, 0.5, error=ValueError("no")))
    line = json.loads(text)
    assert (line["event"], line["lane"], line["after_s"], line["level"]) == ("lane_taken", 3, 0.5, "WARNING")
    assert line["message"] == "lane_taken lane=3 after_s=0.500"
    assert "ValueError: no" in line["exception"]
    assert line["time"].endswith("+00:00")
    assert "event" not in json.loads(logs.JsonFormatter().format(record("anything else=1")))


def test_json_of_a_key_that_is_not_utf8_can_be_written():
    key = ("t", b"\xc3\xa9\xff".decode(errors="surrogateescape"))
    text = logs.JsonFormatter().format(record("record_held lane=%d key=%r", 3, key))
    assert json.loads(text.encode())["key"] == list(key)


def redacted(message, *arguments, function=None, error=None):
    found = record(message, *arguments, error=error)
    assert logs.Redact(function).filter(found)
    return logging.Formatter().format(found)


def test_a_project_may_redact_what_may_tell_of_its_customers():
    def function(event, name, text):
        assert event == "record_held"
        return text.replace("bob@example.com", "…") if name == "key" else text

    line = redacted(
        "record_held lane=%d id=%d key=%r error=%r", 0, 7, ("mails", "bob@example.com"), "too large", function=function
    )
    assert line == "record_held lane=0 id=7 key=('mails', '…') error='too large'"


SECRETS = [
    ("record_held lane=%d id=%d key=%r attempts=%d error=%r", 0, 7, ("t", "a) secret 'key\") x"), 2, "a secret"),
    ("receiver_failed event=%s receiver=%s error=%r", "MeterRead", "f", ValueError("key (4711) has secret s3')")),
    ("spark_holds count=%d scopes=%r remedy=%r", 1, "rejected: t[secret]; paused: t[it's (secret)]", "requeue"),
    ("celery_event_dropped event=%s reason=%s", "meter_read", "two words, secret"),
    ("record_held lane=%d error=%r", 0, {"b": ["secret)", ("secret",)]}),
]


@pytest.mark.parametrize("given", SECRETS, ids=lambda given: given[0].split()[0])
@pytest.mark.parametrize("is_formatted", [False, True])
def test_whatever_quotes_and_brackets_a_field_has_it_is_hidden_as_a_whole(given, is_formatted):
    line = redacted(given[0] % given[1:]) if is_formatted else redacted(*given)
    assert "secret" not in line
    assert line.startswith(given[0].split()[0] + " ")
    if not is_formatted:
        assert " attempts=2 " in line or given[0].split()[0] != "record_held" or "attempts" not in given[0]


def test_a_field_that_cannot_be_shown_hides_the_line_and_raises_nothing():
    class Broken:
        def __repr__(self):
            raise RuntimeError("secret")

    assert redacted("record_held lane=%d error=%r", 0, Broken()) == "record_held (hidden: RuntimeError)"


def test_every_line_of_the_source_has_its_fields_as_arguments():
    """Those that have not are hidden from their first sensitive field on."""
    for path in sources():
        for _, call in calls(path):
            line = call.args[0].value if call.args and isinstance(call.args[0], ast.Constant) else ""
            if isinstance(line, str) and any(f"{name}=" in line for name in logs.SENSITIVE):
                assert len(logs._FIELD.findall(line)) == line.count("%"), f"{path.name}: {line}"


def test_without_a_function_or_with_a_broken_one_nothing_of_it_is_shown():
    def broken(event, name, text):
        raise RuntimeError(text)

    for function, shown in (
        (None, "(hidden)"),
        (broken, "(hidden: RuntimeError)"),
        ("no.such", "(hidden: ModuleNotFoundError)"),
    ):
        line = redacted("lane_failed lane=%d reason=%r", 0, "secret", function=function, error=ValueError("secret"))
        assert line == f"lane_failed lane=0 reason={shown}\n{shown}"


def test_lines_of_others_are_let_through():
    found = record("any key=secret", name="django.request")
    assert logs.Redact().filter(found)
    assert found.getMessage() == "any key=secret"


def test_both_can_be_configured_by_their_paths():
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "filters": {"redact": {"()": "outbox.logs.Redact", "function": "tests.test_logs.shout"}},
            "formatters": {"json": {"()": "outbox.logs.JsonFormatter"}},
            "handlers": {"null": {"class": "logging.NullHandler", "filters": ["redact"], "formatter": "json"}},
            "loggers": {"outbox_of_a_test": {"handlers": ["null"]}},
        }
    )
    configured = logging.getLogger("outbox_of_a_test")
    handler = configured.handlers.pop()
    found = record("waiting reason='x'")
    assert handler.filter(found)
    assert json.loads(handler.format(found))["reason"] == "X"


def shout(event, name, text):
    return text.upper()
