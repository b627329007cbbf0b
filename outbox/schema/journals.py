"""The tables of journals as SQL, and the trigger that places an append when its transaction commits.

An append is one row for each fragment, inserted by the caller's transaction without offsets. At COMMIT the trigger
takes the row of the journal, checks what the append asks for, and gives each fragment its offsets and its chained hash.
So the head is locked for the time of a COMMIT, not for that of the caller's transaction. The order of the offsets is
that in which commits become visible.

What the trigger checks has the same rules in `core/journal/registers.py`, and the hash in `core/journal/chain.py`.
"""

from __future__ import annotations

SUFFIXES = ("journal", "stage", "fragment")


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def create(table: str) -> str:
    """The statements may run again. `table` is the name of the outbox."""
    names = {suffix: quoted(f"{table}_{suffix}") for suffix in SUFFIXES}
    for index in ("genesis", "unplaced", "unindexed", "scrub", "place", "fixed", "new"):
        names[index] = quoted(f"{table}_f_{index}")  # no longer than others: PostgreSQL cuts them
    names["used"] = quoted(f"{table}_stage_used")
    text = _TABLES
    for name, value in names.items():
        text = text.replace(f"<{name}>", value)
    return text


def drop(table: str) -> str:
    tables = ", ".join(quoted(f"{table}_{suffix}") for suffix in reversed(SUFFIXES))
    functions = ", ".join(quoted(f"{table}_f_{name}") + "()" for name in ("place", "fixed"))
    return f"DROP TABLE IF EXISTS {tables}; DROP FUNCTION IF EXISTS {functions};"


_TABLES = """
CREATE TABLE IF NOT EXISTS <journal> (
    name text PRIMARY KEY,
    head bigint NOT NULL DEFAULT 0 CHECK (head >= 0),
    chain bytea NOT NULL,
    registers jsonb NOT NULL DEFAULT '{}',
    replicas integer NOT NULL DEFAULT 1 CHECK (replicas > 0),
    stores text[] NOT NULL,
    fragment_bytes bigint NOT NULL CHECK (fragment_bytes > 0),
    retention interval NULL CHECK (retention > interval '0'),
    is_read_only boolean NOT NULL DEFAULT false,
    -- Why nothing may be appended until an operator has set the head.
    suspect text NOT NULL DEFAULT '',
    created_at timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
-- One for each append that is not committed, written before its first object: whoever finds it finds the objects.
CREATE TABLE IF NOT EXISTS <stage> (
    append uuid PRIMARY KEY,
    journal text NOT NULL,
    day text NOT NULL,
    stores text[] NOT NULL,
    begins bigint[] NOT NULL DEFAULT '{}',
    used_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    is_expired boolean NOT NULL DEFAULT false
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
CREATE INDEX IF NOT EXISTS <used> ON <stage> (used_at);
CREATE TABLE IF NOT EXISTS <fragment> (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    journal text NOT NULL,
    append uuid NOT NULL,
    part integer NOT NULL,
    -- Empty: a gap, which an operator has made by setting the head.
    path text NOT NULL,
    length bigint NOT NULL CHECK (length > 0),
    sha256 bytea NOT NULL,
    -- The digests of its blocks.
    blocks bytea NOT NULL,
    replicas text[] NOT NULL,
    zones integer NOT NULL,
    -- What the append asks of the journal, on its first part.
    conditions jsonb NULL,
    begin bigint NULL CHECK (begin >= 0),
    "end" bigint NULL,
    -- The end of the fragment before; NULL: there is none.
    after bigint NULL,
    chain bytea NULL,
    is_indexed boolean NOT NULL DEFAULT false,
    scrubbed_at timestamptz NOT NULL DEFAULT now(),
    placed_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (append, part),
    UNIQUE (journal, begin),
    UNIQUE (journal, "end"),
    CHECK ((begin IS NULL) = ("end" IS NULL) AND (begin IS NULL) = (chain IS NULL)),
    CHECK ("end" = begin + length),
    CHECK (after = begin),
    FOREIGN KEY (journal, after) REFERENCES <fragment> (journal, "end") DEFERRABLE INITIALLY DEFERRED
);
ALTER TABLE <fragment> ALTER blocks SET STORAGE EXTERNAL;
CREATE UNIQUE INDEX IF NOT EXISTS <genesis> ON <fragment> (journal) WHERE after IS NULL AND begin IS NOT NULL;
CREATE INDEX IF NOT EXISTS <unplaced> ON <fragment> (journal, id) WHERE begin IS NULL;
CREATE INDEX IF NOT EXISTS <unindexed> ON <fragment> (id) WHERE NOT is_indexed;
CREATE INDEX IF NOT EXISTS <scrub> ON <fragment> (scrubbed_at);
CREATE OR REPLACE FUNCTION <place>() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $place$
DECLARE
    target record;
    one record;
    next_offset bigint;
    link bytea;
    held jsonb;
    follows boolean;
BEGIN
    -- Rows without offsets are those of this transaction: others have theirs when they become visible. The first row
    -- places all; a row that was deleted again is not there.
    IF NOT EXISTS (SELECT FROM <fragment> f WHERE f.id = NEW.id AND f.begin IS NULL) THEN
        RETURN NULL;
    END IF;
    IF NOT EXISTS (SELECT FROM <journal> j WHERE j.name = NEW.journal) THEN
        RAISE EXCEPTION USING ERRCODE = 'OBJ01', MESSAGE = format(
            'There is no journal %L. Create it with outbox.journal.create().', NEW.journal);
    END IF;
    FOR target IN
        SELECT * FROM <journal> j
        WHERE j.name IN (SELECT f.journal FROM <fragment> f WHERE f.begin IS NULL)
        ORDER BY j.name FOR NO KEY UPDATE
    LOOP
        next_offset := target.head;
        link := target.chain;
        held := target.registers;
        follows := EXISTS (SELECT FROM <fragment> f WHERE f.journal = target.name AND f."end" = target.head);
        FOR one IN
            SELECT * FROM <fragment> f WHERE f.journal = target.name AND f.begin IS NULL ORDER BY f.id
        LOOP
            IF one.conditions IS NOT NULL THEN
                IF target.suspect <> '' THEN
                    RAISE EXCEPTION USING ERRCODE = 'OBJ03', MESSAGE = format(
                        'The journal %L takes no append: %s Compare the database with the stores, then set the head: '
                        'manage.py outbox_journal reset-head.', target.name, target.suspect);
                END IF;
                IF target.is_read_only THEN
                    RAISE EXCEPTION USING ERRCODE = 'OBJ02', MESSAGE = format(
                        'The journal %L is read-only. Allow appends to it, or choose another.', target.name);
                END IF;
                IF (one.conditions ->> 'offset')::bigint <> next_offset THEN
                    RAISE EXCEPTION USING ERRCODE = 'OBJ04', MESSAGE = format(
                        'The append asks for offset %s of the journal %L, whose head is %s. Read what is there, then '
                        'append with the present head.', one.conditions ->> 'offset', target.name, next_offset);
                END IF;
                IF held <> '{}' AND EXISTS (
                    SELECT FROM jsonb_each_text(one.conditions -> 'check') c
                    WHERE c.value IS DISTINCT FROM held ->> c.key
                ) THEN
                    RAISE EXCEPTION USING ERRCODE = 'OBJ05', MESSAGE = format(
                        'The registers of the journal %L are %s, and the append checks %s. Another writer has changed '
                        'them: read them, then decide.', target.name, held, one.conditions -> 'check');
                END IF;
                held := (held - ARRAY(SELECT jsonb_array_elements_text(one.conditions -> 'drop')))
                    || (one.conditions -> 'set');
            END IF;
            IF one.path <> '' AND (cardinality(one.replicas) < target.replicas
                OR one.zones < least(2, target.replicas)) THEN
                RAISE EXCEPTION USING ERRCODE = 'OBJ07', MESSAGE = format(
                    'The journal %L needs %s replicas in %s zones, and the append has %s in %s. Stage the content '
                    'again.',
                    target.name, target.replicas, least(2, target.replicas), cardinality(one.replicas), one.zones);
            END IF;
            link := sha256(link || int8send(next_offset) || int8send(next_offset + one.length) || one.sha256);
            UPDATE <fragment> f SET begin = next_offset, "end" = next_offset + one.length, chain = link,
                after = CASE WHEN follows THEN next_offset END WHERE f.id = one.id;
            next_offset := next_offset + one.length;
            follows := true;
        END LOOP;
        UPDATE <journal> j SET head = next_offset, chain = link, registers = held WHERE j.name = target.name;
    END LOOP;
    RETURN NULL;
END
$place$;
-- It runs with the rights of the owner, so it never uses a temporary table of its caller, which comes first otherwise.
DO $set$ BEGIN
    EXECUTE $alter$ALTER FUNCTION <place>() SET search_path = $alter$ || quote_ident(current_schema()) || ', pg_temp';
END $set$;
CREATE OR REPLACE FUNCTION <fixed>() RETURNS trigger LANGUAGE plpgsql AS $fixed$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'OBJ09', MESSAGE = format(
        'A fragment of the journal %L gets its offsets at COMMIT and keeps them, with its content. Append to the '
        'journal instead.', NEW.journal);
END
$fixed$;
DROP TRIGGER IF EXISTS place ON <fragment>;
CREATE CONSTRAINT TRIGGER place AFTER INSERT ON <fragment> DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION <place>();
DROP TRIGGER IF EXISTS new ON <fragment>;
CREATE TRIGGER new BEFORE INSERT ON <fragment> FOR EACH ROW WHEN (NEW.begin IS NOT NULL)
    EXECUTE FUNCTION <fixed>();
DROP TRIGGER IF EXISTS fixed ON <fragment>;
CREATE TRIGGER fixed BEFORE UPDATE ON <fragment> FOR EACH ROW WHEN (OLD.begin IS NOT NULL AND
    (OLD.journal, OLD.append, OLD.part, OLD.path, OLD.length, OLD.sha256, OLD.blocks, OLD.begin, OLD.chain)
    IS DISTINCT FROM
    (NEW.journal, NEW.append, NEW.part, NEW.path, NEW.length, NEW.sha256, NEW.blocks, NEW.begin, NEW.chain))
    EXECUTE FUNCTION <fixed>();
"""
