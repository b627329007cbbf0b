"""The one table of docs/outbox-harvest.md names every key. Run as a program, this file prints the table."""

from outbox import conf
from outbox.cli import keys, logs
from outbox.cli.durations import show_duration
from outbox.cli.options import DATA_SOURCE, LOG_LEVEL, MEMBER_NAME
from tests.support.databases import ROOT

HEAD = ("YAML key", "default", "Django setting", "environment", "flag", "what it is")
_PROGRAM_ONLY = {"dataSource": (DATA_SOURCE, "DATABASES"), "name": (MEMBER_NAME, "")}


def table():
    yield HEAD
    for key in keys.KEYS:
        name, setting = _PROGRAM_ONLY.get(key.path, (key.setting, key.setting))
        variable, flag = (keys.variable(name), keys.flag(name)) if name else ("", "")
        yield (
            code(key.path) + (" (ours)" if key in keys.OWN else ""),
            shown(key),
            code(setting),
            code(variable),
            code(flag),
            key.meaning,
        )
    level = "The level from which on the program logs: " + ", ".join(logs.LEVELS) + "."
    yield (code(keys.LOG_LEVEL), code(logs.DEFAULT_LEVEL), code("LOGGING"), code(keys.variable(LOG_LEVEL)),
           code(keys.flag(LOG_LEVEL)), level)  # fmt: skip


def code(text):
    return f"`{text}`" if text else ""


def shown(key):
    if key.shown:
        return key.shown
    value = key.default if key.default is not None else conf.SPECS[key.setting].default
    if key.kind == "duration":
        return code(show_duration(value))
    if key.kind == "flag":
        return code(str(value).lower())
    return code(str(value)) if value != "" else ""


def lines():
    first, *others = (f"| {' | '.join(row)} |".replace("  |", " |") for row in table())
    return [first, "| " + " | ".join(["---"] * len(HEAD)) + " |", *others]


def test_the_table_of_the_document_maps_every_name():
    text = (ROOT / "docs" / "outbox-harvest.md").read_text()
    found = [line for line in text.splitlines() if line.startswith(("| YAML key", "| `"))]
    expected = [line for line in lines() if not line.startswith("| ---")]
    assert found[: len(expected)] == expected


def test_every_own_key_and_every_forced_property_is_named_in_the_document():
    text = (ROOT / "docs" / "outbox-harvest.md").read_text()
    for name in (*keys.FORCED_BASE, *keys.FORCED_EVERYWHERE, *logs.LEVELS, *keys.FORCED.values()):
        assert f"`{name}`" in text, name


if __name__ == "__main__":
    import sys

    sys.stdout.write("\n".join(lines()) + "\n")
