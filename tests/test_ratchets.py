"""What the code may not grow into."""

import ast
import re
from itertools import chain

from tests.support.databases import ROOT

TOP = ROOT / "outbox"
HAS_SQL = (
    "edges/postgres/",
    "migrations/",
    "schema/",
    "messages/inserts.py",
    "wakeups.py",
    "spark/source/",
    "devstack/",
)
# The words of SQL as they are written here, in capitals; SELECT, UPDATE and the like are also words of people.
SQL = re.compile(
    r"/\* [a-z_ ]+ \*/|^-- \w+\n"
    r"|\bSELECT\b.*\bFROM\b|\bSELECT\s+\w+\(|\bSELECT (EXISTS|CASE|NULL|1)\b"
    r"|\bINSERT INTO\b|\bUPDATE\b.*\bSET\b|\bDELETE FROM\b|\bON CONFLICT\b|\bRETURNING\b|\bWITH \w+ AS\b"
    r"|\bCREATE\s+(OR REPLACE |UNIQUE |TEMP\w* |UNLOGGED )?"
    r"(TABLE|INDEX|FUNCTION|TRIGGER|ROLE|USER|DATABASE|TYPE|SEQUENCE|VIEW|EXTENSION|SCHEMA)\b"
    r"|^(WHERE|AND|OR|ORDER BY|GROUP BY|LIMIT|SET|SHOW|LISTEN|NOTIFY|EXPLAIN|TRUNCATE|GRANT|LOCK TABLE|COPY)\b.*%[s(]"
    r"|\bpg_\w+\(.*%[s(]",
    re.DOTALL,
)


def texts(tree):
    """Every string of a module that is no docstring, with its line; what an f-string computes is left out."""
    holders = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = list(ast.walk(tree))
    blocks = [node.body for node in nodes if isinstance(node, holders)]
    documented = {id(statement.value) for statement in chain.from_iterable(blocks) if isinstance(statement, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "{}" for part in node.values]
            yield node.lineno, "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented:
            yield node.lineno, node.value


def test_sql_is_written_where_statements_belong():
    found = []
    for path in sorted(TOP.rglob("*.py")):
        name = path.relative_to(TOP).as_posix()
        if not name.startswith(HAS_SQL):
            found += [f"{name}:{line}: {text}" for line, text in texts(ast.parse(path.read_text())) if is_sql(text)]
    assert found == []


def is_sql(text):
    return SQL.search(text.strip()) is not None


def test_every_place_of_statements_has_some():
    """Else the list above names what is no longer there, or the pattern finds nothing."""
    for place in HAS_SQL:
        paths = (TOP / place).rglob("*.py") if place.endswith("/") else [TOP / place]
        assert any(is_sql(text) for path in paths for _, text in texts(ast.parse(path.read_text()))), place


def test_statements_of_every_kind_are_found_and_sentences_are_not():
    for text in (
        "/* way */ SELECT way FROM {}",
        "SELECT clock_timestamp()",
        "INSERT INTO {} (lanes) VALUES (%s)",
        "UPDATE {state} SET audit = %s",
        "DELETE FROM {}",
        " AND leader_id = %(leader)s::uuid",
        "CREATE OR REPLACE FUNCTION f() RETURNS trigger",
    ):
        assert is_sql(text), text
    for text in (
        "SELECT on the sequence {}",
        "Update the table, then set TABLE.",
        "ALTER TABLE {} ALTER x SET NOT NULL",
    ):
        assert not is_sql(text), text
