"""The migration operation that creates the companion tables. It drops them only when no hold or dead letter is left."""

from typing import Any

from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import ProjectState

from outbox.exceptions import OutboxError
from outbox.schema.adoption import in_short_attempts, refuse_to_drop_records


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


class CreateCompanions(migrations.RunSQL):
    """SQL for PostgreSQL only: other databases of a project have no outbox. Every statement may run again."""

    def __init__(
        self, sql: str, reverse_sql: str, *, outbox: str, holds: str, dead_letters: str, held: str, fragments: str
    ) -> None:
        super().__init__(sql, reverse_sql, hints={"model_name": "outboxrecord"}, elidable=False)
        self.outbox, self.holds, self.dead_letters, self.held = outbox, holds, dead_letters, held
        self.fragments = fragments

    def deconstruct(self) -> Any:
        name, args, _ = super().deconstruct()
        kwargs = {"outbox": self.outbox, "holds": self.holds, "dead_letters": self.dead_letters, "held": self.held}
        kwargs["fragments"] = self.fragments
        return name, args, {"sql": self.sql, "reverse_sql": self.reverse_sql, **kwargs}

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        if schema_editor.connection.vendor == "postgresql":
            super().database_forwards(app_label, schema_editor, from_state, to_state)

    def database_backwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        def drop() -> None:
            super(CreateCompanions, self).database_backwards(app_label, schema_editor, from_state, to_state)

        if schema_editor.connection.vendor != "postgresql":
            return
        if schema_editor.collect_sql:  # sqlmigrate only shows the SQL
            drop()
        else:
            refuse_to_drop_records(schema_editor.connection, self.outbox)  # before its companions are gone
            self._refuse_to_lose_decisions(schema_editor)
            in_short_attempts(schema_editor.connection.alias, "beside the outbox", lambda cursor: drop())

    def _refuse_to_lose_decisions(self, schema_editor: BaseDatabaseSchemaEditor) -> None:
        with schema_editor.connection.cursor() as cursor:
            tables = (self.holds, self.dead_letters, self.held, self.fragments)
            cursor.execute("SELECT " + ", ".join(f"(SELECT count(*) FROM {table})" for table in tables))
            holds, dead, held, fragments = cursor.fetchone()
        if fragments:
            raise OutboxError(
                f"The table {self.fragments} has {fragments} fragments of journals. Migrating backwards would lose "
                "them: nothing else says which objects on the stores they are. First copy what you need, then delete "
                "the rows. Then migrate backwards."
            )
        if held:
            raise OutboxError(
                f"The table {self.held} has {held} held messages and dead letters of consumers. Migrating backwards "
                "would lose them: the positions are behind them. First have the consumers handle or delete them "
                "(manage.py outbox_held; outbox_retry, outbox_requeue or outbox_discard with --consumer). Then "
                "migrate backwards."
            )
        if holds or dead:
            raise OutboxError(
                f"The table {self.holds} has {holds} holds and {self.dead_letters} has {dead} dead letters. Migrating "
                "backwards would drop both tables: the harvester would send paused and rejected keys, and the dead "
                "letters would be lost. First end the holds while a harvester runs (manage.py outbox_resume --all; "
                "outbox_retry or outbox_discard). Then requeue or discard the dead letters (outbox_requeue --all, "
                "outbox_discard --dead-letters --all). Then migrate backwards."
            )
