"""The log's vocabulary: every event by its name, lines taken apart into fields, JSON, and a filter that redacts.

Lines are ``event key=value …``, below the logger ``outbox``. Names and fields are kept stable, because people search
for them and alerts count them; docs/logs.md is compared with this table and with the source. A message's value and
headers are never logged. Its key may be, and the words of servers are: `Redact` lets a project decide about those.
"""

from __future__ import annotations

import ast
import json
import logging
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

EVENTS: Mapping[str, str] = {
    "harvester_started": "the process begins",
    "harvester_stopping": "it was asked to stop",
    "harvester_stopped": "it is done",
    "harvester_failed": "the error that stopped it",
    "starting": "`outbox-harvest` with its file and its place",
    "configuration_note": "`outbox-harvest` assumes something, or leaves it out; a secret is on a command line",
    "waiting": "a server is away at the start, or another [delivery mode](delivery.md) has the table; it waits",
    "waiting_over": "the server is back, or the table is free",
    "create_time_nullable": "exactly-once: records may come without a time, see [the table](table.md#create_time)",
    "clock_set_back": "the clock of this host was set back; a lane may stand still for some seconds",
    "leader_topic_created": "the leader topic did not exist",
    "ledger_topic_created": "the ledger topic did not exist",
    "ledger_policy_unknown": "the user may not read the ledger topic's configuration, so it was not compared",
    "size_limit_unknown": "a topic's max.message.bytes could not be read; it is learnt from what is refused",
    "transaction_log_unknown": "the user may not ask about the brokers' transaction log, so it was not checked",
    "partitions_added": "a topic of this application got more partitions",
    "session_limits_unknown": "the user may not read the brokers' limits, so `SESSION_TIMEOUT` was not compared",
    "partitions_assigned": "what the group gave",
    "partitions_revoked": "what the group took back",
    "partitions_lost": "what the group took without waiting",
    "leader_acquired": "this process owns the lane, see [events](events.md)",
    "leader_refreshed": "it goes on under another id, because an outcome was in doubt",
    "leader_revoked": "the lane is given back, nothing of it is in flight",
    "leader_fenced": "somebody else may own the lane already; everything in flight was dropped",
    "batch_abandoned": "what was in flight did not finish in time; the next owner sends it again",
    "foreign_heartbeat": "a harvester of another database has the same `NAME` on this Kafka; this one goes on",
    "heartbeat_unknown": "the leader topic holds what is no heartbeat of this release; it is ignored",
    "leader_topic_unread": "the leader topic could not be searched for harvesters of another database",
    "election_renewed": "Kafka rejected the credentials; the election has new clients, which asked for them again",
    "election_failed": "Kafka does not serve the election",
    "election_works_again": "and does again",
    "group_not_left": "a stop did not wait any longer for the brokers",
    "workers_left_behind": "a stop did not wait any longer for threads",
    "receivers_left_behind": "a stop did not wait any longer for receivers of signals",
    "lane_taken": "exactly-once: the lane sends from the batch named on",
    "lane_stopped": "neither sending nor deleting is right until an operator has decided, or rows survive their DELETE",
    "lane_failed": "the error that ended a lane, and the harvester with it",
    "lane_ended": "exactly-once: what a lane did while this process owned it",
    "lane_event": "something else about a lane",
    "unclean_release": "exactly-once: the end of a lane was not waited for; its successor settles it",
    "producer_renewed": "exactly-once: a request may still be under way, so another producer goes on",
    "client_errors_unknown": "this Kafka client is newer than this release, which takes its new errors for unforeseen",
    "reading_ended": "exactly-once: what the reader of this process did",
    "lanes_closed": "the lane count is being changed",
    "change_not_marked": "the lane count is not changed yet: what tells the ledger of it could not be written",
    "lanes_opened": "the lane count was changed",
    "lanes_not_changed": "the lane count cannot be changed now, and why",
    "lane_resolved": "an operator has settled a stopped lane",
    "ledger_not_adopted": "an operator's settlement left an entry of the ledger out",
    "kafka_failed": "at-least-once: records could not be delivered for now",
    "kafka_works_again": "and are again",
    "database_failed": "at-least-once: a statement failed, and is repeated",
    "database_works_again": "and does not fail any more",
    "send_failed": "exactly-once: a transaction failed; the lane is taken over again",
    "send_works_again": "and one was committed",
    "takeover_failed": "exactly-once: a server does not answer a takeover",
    "takeover_works_again": "and does again",
    "read_failed": "exactly-once: PostgreSQL could not be read",
    "read_works_again": "and can be again",
    "lease_failed": "exactly-once: the lease on the table could not be repeated; nothing is read when it is old",
    "lease_works_again": "and could be again",
    "lane_refused": "at-least-once: a session that says it is a newer owner holds the lane; who, and what to do",
    "writers_wait": "writers of `ordered=True` have waited for long; who holds their lock, and what to do",
    "purge_failed": "exactly-once: what was delivered could not be deleted; it is tried until it can be",
    "purge_works_again": "and was",
    "purged_fewer": "rows that were sent had vanished before they were deleted: something else deletes from the table",
    "table_warning": "the table can be harvested, but something about it may break a promise; the text has the remedy",
    "not_purged": "at-least-once: rows had vanished, or belong to another leader, before they were deleted",
    "remark_requested": "at-least-once: an outcome was in doubt; what follows repairs it",
    "deadline_exceeded": "at-least-once: something took too long; what follows repairs it",
    "record_held": "Kafka rejected a record; its key waits",
    "dead_letter": "a record became a [dead letter](holds.md), and its key goes on",
    "hold_actions_failed": "what was asked about held records could not be carried out; it is tried again",
    "unclean_takeover": "exactly-once: the owner before ended without a clean release; its cause is looked for",
    "poison_held": "exactly-once: the record ended harvesters that sent it, and is [held](holds.md)",
    "meter_read": "how fast a lane delivers",
    "receiver_failed": "a receiver of a signal raised",
    "event_failed": "a signal could not be sent",
    "events_dropped": "receivers of signals cannot follow",
    "celery_event_dropped": "an event did not become a task, see [Celery](celery.md)",
    "celery_events_resumed": "the next one did",
    "redactor_failed": "`REDACTOR` raised; the admin showed a note instead of the value",
    "spark_started": "Spark: the engine's JVM runs, with the address of its web interface",
    "spark_retry": "Spark: the query ended and is started again, or a server is away",
    "spark_fenced": "Spark: another driver has the table; this one leaves it and stands by",
    "spark_holds": "Spark: what is held back is left alone, and how that ends",
    "spark_holds_over": "Spark: nothing is held back any more",
    "spark_driver_ended": "Spark: the process that drives it has ended; another is started",
    "spark_driver_failed": "Spark: an error that nothing else explains, with its traceback",
    "epoch_delivered": "Spark: an epoch is in Kafka",
    "database_unavailable": "Spark: PostgreSQL does not answer the source; it is asked again",
    "slice_restarted": "Spark: a slice failed half-way and is sent anew, in another transaction",
    "resent": "Spark: a batch that was not known to be delivered is read again",
    "not_listening": "notifications of writers cannot be heard, so the table is polled as without them",
    "metrics_served": "the address of `/metrics`, `/livez` and `/readyz`",
    "metrics_failed": "the metrics could not be put together; the harvesting goes on",
    "sampling_failed": "backlog and age could not be looked up for metrics or charts; the harvesting goes on",
    "sampling_works_again": "and can be again",
    "lag_sampling_failed": "the ledger's lag could not be looked up for metrics; all else can be",
    "lag_sampling_works_again": "and can be again",
    "dropped_client": "a client that is thrown away had something to say",
}

_PAIR = re.compile(r"""(\w+)=('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|\[[^\]]*\]|\([^)]*\)|\S*)""")


def take_apart(line: str) -> tuple[str, dict[str, Any]]:
    """The event of a line and its fields: numbers as numbers, quoted text without its quotes."""
    event, _, rest = line.partition(" ")
    return event.rstrip(":"), {name: _value(text) for name, text in _PAIR.findall(rest)}


def _value(text: str) -> Any:
    text = text.rstrip(":")
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, event and its fields; ``message`` is the line as it stands."""

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        event, fields = take_apart(message)
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": message,
        }
        if event in EVENTS:
            line |= {"event": event, **{name: value for name, value in fields.items() if name not in line}}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        text = json.dumps(line, default=str, ensure_ascii=False)
        return text.encode(errors="backslashreplace").decode()  # what is not UTF-8 in a key, as an escape of JSON


SENSITIVE = frozenset({"key", "error", "reason", "event", "trouble", "scopes"})
"""Fields that may hold a message's key or the words of a server."""
_FIELD = re.compile(r"(?:(\w+)=)?(%(?:r|s|(?:\.\d+)?[dfg]))")
HIDDEN = "(hidden)"

RedactField = Callable[[str, str, str], str]


class Redact(logging.Filter):
    """A filter for handlers of the logger ``outbox``: what a project does not want in its log.

    ``{"()": "outbox.logs.Redact", "function": "shop.logs.redact"}``, where the function gets the event, the name of
    the field and its text, and returns the text to be shown. It is asked about the fields in `SENSITIVE`, and about
    tracebacks as the field ``exception``. Without a function they are all hidden, as when it raises.
    """

    def __init__(self, function: str | RedactField | None = None) -> None:
        super().__init__()
        self._given = function

    def filter(self, record: logging.LogRecord) -> bool:
        if not record.name.startswith("outbox"):
            return True
        event = str(record.msg).partition(" ")[0]
        try:
            message = record.getMessage()
            event = message.partition(" ")[0]
            record.msg = self._line(record, event, message)
        except Exception as error:  # of an argument that cannot be shown
            record.msg = f"{event} (hidden: {type(error).__name__})"
        record.args = ()
        if record.exc_info:
            text = record.exc_text or logging.Formatter().formatException(record.exc_info)
            record.exc_info, record.exc_text = None, self._redacted(event, "exception", text)
        return True

    def _line(self, record: logging.LogRecord, event: str, message: str) -> str:
        """Before a line is one text, each field is known for certain, whatever brackets and quotes its own text has."""
        line, arguments = str(record.msg), record.args if isinstance(record.args, tuple) else ()
        fields = list(_FIELD.finditer(line))
        if not fields or not len(fields) == len(arguments) == line.count("%"):
            return self._by_text(event, message)
        parts, end = [], 0
        for found, argument in zip(fields, arguments, strict=True):
            text = found[2] % (argument,)
            shown = self._redacted(event, found[1], text) if found[1] in SENSITIVE else text
            parts += [line[end : found.start(2)], shown]
            end = found.end()
        return "".join([*parts, line[end:]])

    def _by_text(self, event: str, message: str) -> str:
        """A line that is one text already: where its first such field ends is not certain, so all of the rest goes."""
        for found in _PAIR.finditer(message):
            if found[1] in SENSITIVE:
                begin = found.start(2)
                return message[:begin] + self._redacted(event, found[1], message[begin:])
        return message

    def _redacted(self, event: str, name: str, text: str) -> str:
        try:
            function = self._function()
            return str(function(event, name, text)) if function is not None else HIDDEN
        except Exception as error:
            return f"(hidden: {type(error).__name__})"

    def _function(self) -> RedactField | None:
        if isinstance(self._given, str):
            from django.utils.module_loading import import_string

            self._given = import_string(self._given)
        return self._given  # type: ignore[return-value]
