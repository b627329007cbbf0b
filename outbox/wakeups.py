"""Optional: a trigger that tells a sleeping harvester of new records, so that the first one after a silence does not
wait for the next poll. For RunSQL in a migration of the project; the harvester listens when NOTIFY is set.

It is a trigger, so that every writer in every language takes part and none pays a round trip. PostgreSQL notifies in
the order of commits and serialises, for the whole instance, the commits of transactions that notify: with many small
transactions at once that costs more than polling does, which is why nothing here is the default.
"""

from outbox import conf
from outbox.edges.postgres.common.notifications import channel as channel


def install(table: str | None = None) -> str:
    """SQL that makes the trigger of the table, by default of the one that the settings name."""
    name = table or conf.table_name()
    quoted, literal = _identifier(name), _literal(channel(name))
    return (
        f"CREATE OR REPLACE FUNCTION {_identifier(f'{name}_wake')}() RETURNS trigger LANGUAGE plpgsql AS "
        f"$wake$ BEGIN PERFORM pg_notify({literal}, ''); RETURN NULL; END $wake$;\n"
        f"CREATE TRIGGER {_identifier(f'{name}_wake')} AFTER INSERT ON {quoted} "
        f"FOR EACH STATEMENT EXECUTE FUNCTION {_identifier(f'{name}_wake')}();"
    )


def remove(table: str | None = None) -> str:
    """SQL that takes back what `install` has made."""
    name = table or conf.table_name()
    return (
        f"DROP TRIGGER IF EXISTS {_identifier(f'{name}_wake')} ON {_identifier(name)};\n"
        f"DROP FUNCTION IF EXISTS {_identifier(f'{name}_wake')}();"
    )


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
