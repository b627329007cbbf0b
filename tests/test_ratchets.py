"""What the code may not grow into."""

import ast
import re
from collections import Counter, defaultdict
from itertools import chain

from tests.simulation.at_least_once import mutations as at_least_once
from tests.simulation.consumers import mutations as consumers
from tests.simulation.exactly_once import mutations as exactly_once
from tests.simulation.graphs import mutations as graphs
from tests.simulation.journal import mutations as journal
from tests.simulation.relay import mutations as relay
from tests.support import attributes
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
        "/* lease */ SELECT lease_mode FROM {}",
        "SELECT clock_timestamp()",
        "INSERT INTO {} (lanes) VALUES (%s)",
        "UPDATE {state} SET verification = %s",
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


# ---- classes

ATTRIBUTES_MAX = 25
ASSIGNED_FROM_OUTSIDE = {
    "edges/postgres/common/backends.py": "backend give_up_at",
    "edges/postgres/common/session.py": "give_up_at interrupt",
    "edges/postgres/common/table.py": "give_up_at",
    "harvest/at_least_once/holds.py": "held",
    "harvest/exactly_once/resolve.py": "give_up_at",
    "harvest/exactly_once/rounds/database.py": "give_up_at opened_at",
    "harvest/exactly_once/rounds/read_connection.py": "give_up_at interrupt meanwhile meanwhile_s",
    "management/commands/outbox_lanes.py": "give_up_at",
    "spark/source/datasource.py": "give_up_at",
    "testing/broker.py": "is_writable",
}
"""Attributes of classes that code outside of them assigns still, by module; most are options of a connection. The list
may only shrink."""
NAMESAKES = {"devstack/__main__.py": "command"}
"""Attributes of what comes from elsewhere that are called as one of ours."""


def modules():
    return {path.relative_to(TOP).as_posix(): ast.parse(path.read_text()) for path in sorted(TOP.rglob("*.py"))}


def test_no_class_has_more_than_25_attributes():
    counted = {
        f"{path}: {node.name}": len(attributes.held(node))
        for path, tree in modules().items()
        for node in attributes.classes(tree)
    }
    assert {name: count for name, count in counted.items() if count > ATTRIBUTES_MAX} == {}
    assert counted["harvest/exactly_once/lane.py: ExactlyOnce"] > 10, "it counts"


def test_no_code_outside_a_class_assigns_its_attributes():
    trees = modules()
    names = {name for tree in trees.values() for node in attributes.classes(tree) for name in attributes.known(node)}
    found = {path: attributes.assigned_from_outside(tree, names) for path, tree in trees.items()}
    allowed = {path: set(text.split()) for path, text in (ASSIGNED_FROM_OUTSIDE | NAMESAKES).items()}
    assert {path: assigned for path, assigned in found.items() if assigned} == allowed


def test_attributes_are_counted_and_their_assignment_from_outside_is_found():
    tree = ast.parse("""
@dataclass(slots=True)
class Open:
    field: int
    def change(self, other): self.later, other.field = 1, 2
@dataclass(frozen=True)
class Frozen:
    field: int
class Plain:
    declared: int
    def __init__(self, one):
        self.a = self.b = 1
        self.b += 1
        one.later.read = one.field = 2
def change(one):
    one.a, one.foreign = one.read, 1
    one.b += 1
    del one.c, one.declared
""")
    assert [attributes.held(node) for node in attributes.classes(tree)] == [{"field", "later"}, set(), {"a", "b"}]
    names = {"field", "later", "declared", "read", "a", "b", "c"}
    assert attributes.assigned_from_outside(tree, names) == {"a", "b", "c", "declared", "field", "read"}


# ---- folders

MODULES_MAX = 16
SIBLINGS_MAX = 2
"""That share a prefix: a third one asks for a package."""
AS_DJANGO_HAS_IT = ("management/commands", "migrations")


def folders():
    for folder in [TOP, *(init.parent for init in sorted(TOP.rglob("*/__init__.py")))]:
        name = folder.relative_to(TOP).as_posix()
        if name not in AS_DJANGO_HAS_IT:
            modules = [path.stem for path in folder.glob("*.py") if path.stem != "__init__"]
            yield name, modules, [path.parent.name for path in folder.glob("*/__init__.py")]


def test_a_folder_holds_few_modules():
    assert [(name, len(modules)) for name, modules, _ in folders() if len(modules) > MODULES_MAX] == []


def test_modules_that_share_a_prefix_are_a_package():
    found = {}
    for name, modules, packages in folders():
        shared = Counter(module.split("_")[0] for module in (*modules, *packages))
        found |= {f"{name}/{prefix}_*": count for prefix, count in shared.items() if count > SIBLINGS_MAX}
    assert found == {}


# ---- names of classes


def named_twice():
    found = defaultdict(set)
    for path in TOP.rglob("*.py"):
        name = path.relative_to(TOP).as_posix()
        if not name.startswith(AS_DJANGO_HAS_IT):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found[node.name].add(name)
    return {name: sorted(paths) for name, paths in found.items() if len(paths) > 1}


def test_a_class_has_its_name_alone():
    assert named_twice() == {}


# ---- planted bugs

CONTROLS = {
    "purge by id without guard m": "tests/faults/exactly_once/test_database.py::"
    "test_a_late_purge_deletes_what_was_sent_and_nothing_between",
    "takeover without waiting for the stable offset": "tests/edges/kafka/test_ledger_topic.py::"
    "test_an_open_transaction_is_waited_for",
    "purge and reset without leader guard": "tests/edges/postgres/test_marks.py::"
    "test_purge_reset_fetch_and_sweep_touch_only_rows_of_their_leader",
    "a stage in use is swept": "tests/journal/test_keeper.py::test_a_stage_that_a_transaction_uses_stays",
    "registers are not checked at commit": "tests/journal/test_api.py::"
    "test_a_writer_that_was_replaced_is_refused_at_commit",
    "a takeover does not stop older marks": "tests/edges/postgres/test_marks.py::"
    "test_a_mark_under_way_has_taken_effect_or_never_will_when_the_claim_returns",
    "settlement without token": "tests/edges/postgres/test_deliveries.py::"
    "test_a_settlement_of_an_older_lease_changes_nothing",
    "times of the relay's clock": "tests/edges/postgres/test_deliveries.py::"
    "test_leases_and_pauses_follow_the_clock_of_the_server",
    "attempt given back without guard": "tests/edges/postgres/test_deliveries.py::"
    "test_an_attempt_is_given_back_once_and_only_to_a_row_that_was_not_leased_since",
    "head of a key skipped": "tests/edges/postgres/test_deliveries.py::"
    "test_a_key_is_leased_from_its_first_delivery_on_by_one_relay",
    "two probes": "tests/edges/postgres/test_deliveries.py::test_of_several_relays_one_gets_the_probe",
}
"""Of bugs that the simulated server has, because the rule is a guard of SQL or a question of a client: the test of the
real one."""


def test_planted_bugs_change_the_product_or_have_a_control_on_the_real_server():
    without = set()
    for name, planted in {
        **at_least_once.MUTATIONS,
        **consumers.MUTATIONS,
        **exactly_once.MUTATIONS,
        **graphs.MUTATIONS,
        **journal.MUTATIONS,
        **relay.MUTATIONS,
    }.items():
        owners = {getattr(owner, "__module__", "") or owner.__name__ for owner, *_ in planted.changes}
        assert all(owner.startswith("outbox.") for owner in owners), (name, owners)
        without |= set() if owners else {name}
    assert without == CONTROLS.keys()
    for control in CONTROLS.values():
        path, _, test = control.partition("::")
        assert f"def {test}(" in (ROOT / path).read_text(), control
