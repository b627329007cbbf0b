"""The catalogue of log events, a parser of log lines, a JSON formatter, and a filter that redacts.

Lines are ``event key=value …``, below the logger ``outbox``. Names and fields stay stable, because people search for
them and alerts count them. A test compares docs/logs.md with this table and with the source. The package never logs the
value or the headers of a message. It logs keys and the error texts of servers: `Redact` lets a project hide those.
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
    "harvester_started": "The harvester process has started.",
    "harvester_stopping": "The harvester was asked to stop.",
    "harvester_stopped": "The harvester has stopped.",
    "harvester_failed": "An error has stopped the harvester; the field `reason` names it.",
    "starting": "`outbox-harvest` starts; the fields name its version, its file and its working directory.",
    "configuration_note": (
        "The command assumes or ignores part of its configuration, or a secret is on its command line."
    ),
    "waiting": "The harvester waits: a server is unavailable, or another [delivery mode](delivery.md) holds the table.",
    "waiting_over": "The harvester has stopped waiting: the server is back, or the table is free.",
    "create_time_nullable": (
        "Exactly-once: the table accepts records without a time, see [the table](table.md#create_time)."
    ),
    "clock_set_back": "The clock of this host was set back; a lane may pause for some seconds.",
    "leader_topic_created": "The harvester has created the leader topic, because it did not exist.",
    "ledger_topic_created": "The harvester has created the ledger topic, because it did not exist.",
    "ledger_policy_unknown": (
        "Kafka does not let the user read the ledger topic's configuration, so the harvester has not checked it."
    ),
    "size_limit_unknown": (
        "The harvester could not read a topic's max.message.bytes; it learns the limit from rejections."
    ),
    "transaction_log_unknown": (
        "Kafka does not let the user read the brokers' transaction log, so the harvester has not checked it."
    ),
    "partitions_added": "The harvester has added partitions to one of its topics.",
    "session_limits_unknown": (
        "Kafka does not let the user read the brokers' limits, so the harvester has not checked `SESSION_TIMEOUT`."
    ),
    "partitions_assigned": "Kafka has assigned partitions of the leader topic to this process.",
    "partitions_revoked": "Kafka has asked this process to give partitions of the leader topic back.",
    "partitions_lost": "Kafka has taken partitions of the leader topic from this process without waiting for it.",
    "leader_acquired": "This process now owns the lane, see [events](events.md).",
    "leader_refreshed": "The owner of the lane continues under another id, because an outcome was in doubt.",
    "leader_revoked": "This process has given the lane back; nothing of the lane is in flight.",
    "leader_fenced": "This process has dropped everything in flight, because another process may own the lane already.",
    "batch_abandoned": (
        "This process gave up records in flight that were not finished in time; the next owner settles or repeats them."
    ),
    "foreign_heartbeat": (
        "A harvester of another database uses the same `NAME` on this Kafka; this harvester continues."
    ),
    "heartbeat_unknown": "The harvester ignores a message in the leader topic that is no heartbeat of this release.",
    "leader_topic_unread": "The harvester could not search the leader topic for harvesters of another database.",
    "election_renewed": (
        "Kafka rejected the credentials; the harvester has made new election clients, which ask for them again."
    ),
    "election_failed": "Kafka does not serve the election.",
    "election_works_again": "Kafka serves the election again.",
    "group_not_left": "The harvester has stopped before the brokers confirmed that it left the group.",
    "workers_left_behind": "The harvester has stopped before all of its threads ended.",
    "receivers_left_behind": "The harvester has stopped before all receivers of signals returned.",
    "lane_taken": "Exactly-once: the new owner has taken the lane over and sends from this batch on.",
    "lane_stopped": "The lane sends and deletes nothing: an operator must decide, or rows survive their DELETE.",
    "lane_failed": "An error has ended the lane, and with it the harvester.",
    "lane_ended": "Exactly-once: the lane has ended in this process; the fields count its work.",
    "lane_event": "Something else has happened to the lane; the field `event` describes it.",
    "unclean_release": (
        "Exactly-once: the lane has ended before all of its records were settled; the next owner settles them."
    ),
    "producer_renewed": (
        "Exactly-once: the lane uses a new producer, because a request of the old one may still be in flight."
    ),
    "client_errors_unknown": (
        "The Kafka client is newer than this release, which handles its new error codes as unforeseen errors."
    ),
    "reading_ended": "Exactly-once: the reader of this process has ended; the fields count its work.",
    "lanes_closed": "The harvester has closed the lanes to change their count.",
    "change_not_marked": "The harvester could not write the change of the lane count to the ledger; it tries again.",
    "lanes_opened": "The harvester has changed the lane count and opened the lanes.",
    "lanes_not_changed": "The harvester cannot change the lane count; the field `reason` says why.",
    "lane_resolved": "An operator has settled a stopped lane.",
    "ledger_not_adopted": "An operator has settled a lane, but `outbox_resolve` could not write its ledger entry.",
    "kafka_failed": "At-least-once: Kafka does not accept records; the harvester tries again.",
    "kafka_works_again": "At-least-once: Kafka accepts records again.",
    "database_failed": "At-least-once: PostgreSQL has failed a statement; the harvester repeats it.",
    "database_works_again": "At-least-once: PostgreSQL executes statements again.",
    "send_failed": "Exactly-once: a Kafka transaction has failed; the harvester takes the lane over again.",
    "send_works_again": "Exactly-once: Kafka has committed a transaction again.",
    "takeover_failed": "Exactly-once: a server does not answer, so the harvester cannot take the lane over yet.",
    "takeover_works_again": "Exactly-once: the servers answer a takeover again.",
    "read_failed": "Exactly-once: the harvester cannot read records from PostgreSQL.",
    "read_works_again": "Exactly-once: the harvester can read records from PostgreSQL again.",
    "lease_failed": (
        "Exactly-once: the harvester cannot renew its lease on the table; when the lease is old, it stops reading."
    ),
    "lease_works_again": "Exactly-once: the harvester has renewed its lease on the table again.",
    "lane_refused": (
        "At-least-once: a session that says it is a newer owner holds the lane; `by` names it and the remedy."
    ),
    "writers_wait": (
        "Writers of `ordered=True` have waited for long; the fields name the holders of their lock and the remedy."
    ),
    "purge_failed": "Exactly-once: PostgreSQL could not delete delivered records; the harvester tries until it can.",
    "purge_works_again": "Exactly-once: PostgreSQL deletes delivered records again.",
    "purged_fewer": "Sent rows had vanished before the harvester deleted them: another program deletes from the table.",
    "table_warning": "The harvester has found a risk to a promise in the table; the field `reason` has the remedy.",
    "not_purged": "At-least-once, Spark: rows had vanished, or another leader had marked them, before their deletion.",
    "remark_requested": "At-least-once: the harvester marks its records again, because an outcome was in doubt.",
    "deadline_exceeded": (
        "At-least-once: a key has waited too long, or a report of Kafka is overdue; the harvester recovers."
    ),
    "record_held": "Kafka rejected a record; the harvester holds its key.",
    "dead_letter": "The harvester has moved a record to the [dead letters](holds.md) and continues with its key.",
    "hold_actions_failed": "The harvester could not carry out a requested retry, skip or discard; it tries again.",
    "unclean_takeover": (
        "Exactly-once: the previous owner has crashed; the harvester searches for the record that caused it."
    ),
    "poison_held": "Exactly-once: the harvester [holds](holds.md) a record that has crashed harvesters.",
    "meter_read": "The harvester reports how fast the lane delivers.",
    "receiver_failed": "A receiver of a signal has raised an error.",
    "event_failed": "The harvester could not send a signal.",
    "events_dropped": "The harvester drops events, because a receiver of signals is too slow.",
    "celery_event_dropped": "The harvester could not send an event as a task, see [Celery](celery.md).",
    "celery_events_resumed": "The harvester sends events as tasks again, see [Celery](celery.md).",
    "redactor_failed": "The function in `REDACTOR` has failed; the admin shows a note instead of the value.",
    "spark_started": "Spark: the engine's JVM has started; the field `ui` has the address of its web interface.",
    "spark_retry": "Spark: the query has ended or a server is unavailable; the harvester starts the query again.",
    "spark_fenced": "Spark: another driver owns the table; this one has released it and waits as a standby.",
    "spark_holds": "Spark: the engine skips held records; the field `remedy` says how to end the holds.",
    "spark_holds_over": "Spark: no record is held any more.",
    "spark_driver_ended": "Spark: the driver process has ended; the harvester starts another one.",
    "spark_driver_failed": "Spark: an unforeseen error has ended the driver; its traceback follows.",
    "epoch_delivered": "Spark: Kafka has received the records of an epoch.",
    "database_unavailable": "Spark: PostgreSQL does not answer the source, which asks again.",
    "slice_restarted": "Spark: a slice has failed; the sink sends it again in another transaction.",
    "resent": "Spark: the source reads a batch again, because it does not know whether the batch was delivered.",
    "not_listening": "The harvester cannot receive writers' notifications, so it polls the table.",
    "metrics_served": "The process serves `/metrics`, `/livez` and `/readyz` at this address.",
    "metrics_failed": "The harvester could not produce its metrics; it continues to deliver.",
    "sampling_failed": "The harvester could not read backlog and age for metrics or charts; it continues to deliver.",
    "sampling_works_again": "The harvester can read backlog and age for metrics or charts again.",
    "lag_sampling_failed": "The harvester could not read the ledger's lag for metrics; other metrics are not affected.",
    "lag_sampling_works_again": "The harvester can read the ledger's lag for metrics again.",
    "dropped_client": "A discarded Kafka client has reported an error.",
    "keeper_started": "The keeper of journals starts.",
    "keeper_stopping": "The keeper of journals was asked to stop.",
    "keeper_stopped": "The keeper of journals has stopped.",
    "keeper_failed": "The keeper of journals stops because of this error.",
    "journals_kept": "A round of the keeper has changed something; the field `done` counts what.",
    "journal_suspect": "A store has more of the journal than the database, or something else: no append is possible.",
    "store_failed": "A store of journals failed; what needs it waits for the next round.",
    "consumers_started": "The process with consumers starts.",
    "consumers_stopping": "The process with consumers was asked to stop.",
    "consumers_stopped": "The process with consumers has stopped.",
    "consumers_failed": "The process with consumers stops because of this error.",
    "consumer_left_behind": "A stop has ended the process before a consumer's function returned or Kafka answered.",
    "group_failed": "The Kafka client of a consumer reports an error. The consumer tries again.",
    "topology_changed": (
        "A processor has inputs that it had not before. It begins them as `start` says, and the others keep "
        "their place."
    ),
    "graph_started": "A process begins to run the processors of a graph.",
    "graph_stopping": "A process that runs a graph was asked to stop. It finishes the batches under way.",
    "graph_stopped": "A process that runs a graph has stopped.",
    "graph_failed": "An error has stopped a process that runs a graph. The reason names it.",
    "graph_left_behind": "A stop has ended the process before a processor's function returned or Kafka answered.",
    "graph_lane_placed": (
        "A lane of a graph was taken over. Older owners are fenced, and the lane continues at these positions."
    ),
    "graph_lane_stopped": "A lane of a graph has stopped. The reason says what an operator has to do.",
    "graph_lane_failing": "A lane of a graph cannot continue now. It tries again by itself.",
    "step_failed": (
        "A processor's function raised an error, or Kafka rejected what it returned. The field `fate` says "
        "what becomes of the step."
    ),
    "graph_producer_renewed": (
        "A lane of a graph has replaced its producer after trouble with a connection, and takes itself over."
    ),
    "outputs_lost": (
        "A processor with the strategy at-most-once has committed positions, and the outputs of these steps are lost."
    ),
    "graph_group_failed": "The Kafka client of a processor reports an error. The processor tries again.",
    "partition_stopped": "A consumer no longer reads a partition. The reason says what an operator has to do.",
    "partition_failing": "The Kafka client of a consumer reports an error of one partition. The consumer tries again.",
    "consumer_failing": "A consumer's function fails with the messages of many keys in a row. The consumer holds no "
    "more messages, and tries one from time to time. The event `consumer_goes_on` ends this.",
    "message_failed": "A consumer's function raised an error. The consumer holds the message, or stops the partition. "
    "The first failure of a message has the stack.",
    "poison_message": "A message has ended the process of a consumer twice while it was handled by itself. It is held. "
    "The offset of a message that was held before is `held-` and the id that `outbox_held` prints.",
    "unclean_partition": "The owner of a consumer's partition has died. Messages are handled one by one for a while.",
    "message_postponed": "A consumer's function raised NotYet. The consumer tries the message again later.",
    "batch_repeated": "A lock or a conflict ended a consumer's transaction. It tries again with fewer.",
    "consumer_waits": "A server does not answer a consumer. No message has failed.",
    "consumer_goes_on": "The server answers the consumer again, or the function handles messages again.",
    "commit_settled": "A consumer lost its connection in COMMIT. Its positions say whether it took effect.",
    "blocking_session_ended": "A consumer ended the session of an earlier owner, which held its locks for too long.",
    "database_went_back": "The database lost committed positions, as after a failover. The consumer handles the "
    "messages again from the position that the database has.",
    "hook_failed": "A function of on_commit raised an error. The messages are handled, and the other functions run.",
    "write_outside": "A consumer's function wrote through another alias, outside of the transaction of its position. "
    "The process logs it once for each alias.",
    "partitions_not_shown": "PostgreSQL rejects what a process shows of its partitions. The consumer continues. The "
    "process logs each error once.",
    "function_overrun": "A consumer's function took longer than `timeout_s`. The process logs its stack and ends.",
    "database_overrun": "PostgreSQL did not answer a consumer for too long. The process logs the stack and ends.",
}

_PAIR = re.compile(r"""(\w+)=('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|\[[^\]]*\]|\([^)]*\)|\S*)""")


def take_apart(line: str) -> tuple[str, dict[str, Any]]:
    """Return the event of a line and its fields: numbers as numbers, quoted text without its quotes."""
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
        return text.encode(errors="backslashreplace").decode()  # bytes of a key that are not UTF-8 become JSON escapes


SENSITIVE = frozenset({"key", "error", "reason", "event", "trouble", "scopes"})
"""Fields that may hold a message's key or the error text of a server."""
_FIELD = re.compile(r"(?:(\w+)=)?(%(?:r|s|(?:\.\d+)?[dfg]))")
HIDDEN = "(hidden)"

RedactField = Callable[[str, str, str], str]


class Redact(logging.Filter):
    """A filter for handlers of the logger ``outbox``: it hides what a project does not want in its log.

    Configure it as ``{"()": "outbox.logs.Redact", "function": "shop.logs.redact"}``. The function gets the event, the
    name of the field and its text, and returns the text to show. The filter calls it for the fields in `SENSITIVE`, and
    for tracebacks as the field ``exception``. Without a function, and when it raises, the filter hides them all.
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
        except Exception as error:  # an argument's repr or str failed
            record.msg = f"{event} (hidden: {type(error).__name__})"
        record.args = ()
        if record.exc_info:
            text = record.exc_text or logging.Formatter().formatException(record.exc_info)
            record.exc_info, record.exc_text = None, self._redacted(event, "exception", text)
        return True

    def _line(self, record: logging.LogRecord, event: str, message: str) -> str:
        """Redact a line whose fields are still arguments: quotes and brackets in a field cannot mislead here."""
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
        """Redact a line that is already one text. The end of a field is uncertain there: the rest is one field."""
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
