"""``manage.py outbox_verify``: proves with Spark, from topics, ledger and table, what was delivered."""

from __future__ import annotations

import json
import signal
import sys
import threading
from argparse import ArgumentParser
from collections.abc import Callable
from typing import Any

import psycopg
from django.core.management.base import BaseCommand, CommandError

from outbox import conf as settings
from outbox.conf import Conf
from outbox.edges.postgres.common.table import parameters
from outbox.exceptions import OutboxError
from outbox.operations import stats
from outbox.spark import sessions
from outbox.spark.verify.findings import NotNow, Result, VerificationImpossible, VerificationRequest, store

EXIT_CODES = {
    0: "every record in the ledger's window was delivered once and in order",
    1: "the verification was not possible, and the last line names the cause; nothing is known",
    2: "the arguments are wrong",
    3: "the verification found a record that was lost, sent twice, altered or reordered",
}
_FAULTY = 3
_MEMORY = "1g"
_LINE_MAX = 500


class Command(BaseCommand):
    help = "Proves with Spark, from topics, ledger and table, that no record was lost, sent twice or reordered."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.epilog = "Exit codes: " + "; ".join(f"{code}: {text}" for code, text in EXIT_CODES.items()) + "."
        parser.add_argument("--database", metavar="ALIAS", help="The database alias, in place of DATABASE.")
        parser.add_argument("--json", action="store_true", help="Prints one JSON object per verification.")
        parser.add_argument(
            "--continuous",
            action="store_true",
            help="Repeats the verification until it finds a fault or a signal comes.",
        )
        parser.add_argument(
            "--every",
            type=float,
            default=300.0,
            metavar="SECONDS",
            help="The time between two verifications, with --continuous (300).",
        )
        parser.add_argument(
            "--topic", action="append", default=[], metavar="TOPIC",
            help="Reads only this topic. Repeat it until every topic of the records is named. Default: every topic.",
        )  # fmt: skip
        parser.add_argument(
            "--ledger", action="append", default=[], metavar="TOPIC",
            help="Compares with this ledger. Repeat it for more. Default: NAME.ledger, outbox-spark-NAME, and "
            "every other outbox-spark-* whose entries name this database.",
        )  # fmt: skip
        parser.add_argument("--master", default="local[*]", metavar="URL", help="The URL of Spark's master (local[*]).")
        parser.add_argument(
            "--spark-conf", action="append", default=[], metavar="NAME=VALUE",
            help="A setting of Spark. Repeat it for more.",
        )  # fmt: skip

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            request, config = self._request(options), _config(options["spark_conf"])
            for text in sessions.exposed(config):
                self.stderr.write(text)
            is_clean = self._verifications(request, config, options)
        except OutboxError as error:
            raise CommandError(str(error)) from error
        if not is_clean:
            sys.exit(_FAULTY)

    def _request(self, options: dict[str, Any]) -> VerificationRequest:
        conf = settings.current()
        alias = options["database"] or conf.database
        stats.require_alias(alias)
        return VerificationRequest(
            parameters=parameters(alias),
            table=conf.table,
            properties=conf.kafka.client_properties,
            ledgers=tuple(options["ledger"] or _ledgers(conf)),
            finds_sinks=not options["ledger"],
            without=(conf.election.leader_topic,),
            topics=tuple(options["topic"]),
            id_header=_id_header(conf),
        )

    def _verifications(self, request: VerificationRequest, config: dict[str, str], options: dict[str, Any]) -> bool:
        stop = threading.Event()
        spark = sessions.session("outbox verification", options["master"], config, show_ui=not options["json"])
        spark.sparkContext.setLogLevel("ERROR")
        if options["continuous"]:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: stop.set())
        try:
            while True:
                try:
                    result = _verify(spark, request, self._say)
                except NotNow as error:
                    if not options["continuous"]:
                        raise
                    self.stderr.write(f"No result: {error} The next verification follows in {options['every']:g} s.")
                    if stop.wait(options["every"]):
                        raise
                    continue
                self._tell(result, options["json"])
                self._store(request, result)
                if not (options["continuous"] and result.is_clean) or stop.wait(options["every"]):
                    return result.is_clean
        finally:
            spark.stop()

    def _say(self, text: str) -> None:
        if self.stderr.isatty():
            self.stderr.write(text)

    def _tell(self, result: Result, as_json: bool) -> None:
        self.stdout.write(json.dumps(result.as_dict()) if as_json else "\n".join(result.lines()))
        self.stdout.flush()

    def _store(self, request: VerificationRequest, result: Result) -> None:
        try:
            is_stored = store(request, result)
        except psycopg.Error as error:
            self.stderr.write(
                f"PostgreSQL did not store the result: {' '.join(str(error).split())}. Run: manage.py migrate outbox"
            )
        else:
            if not is_stored:
                self.stderr.write("The result was not stored, because no harvester has used this table yet.")


def _verify(spark: Any, request: VerificationRequest, say: Callable[[str], None]) -> Result:
    """The result, or one line about what prevents it. Spark passes on the errors of its Python workers as text."""
    from confluent_kafka import KafkaException
    from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    from outbox.edges.kafka.exactly_once.ledger_topic import LedgerUnreachable
    from outbox.spark.engine.failure_kinds import judge
    from outbox.spark.verify import run

    try:
        return run.verify(spark, request, say)
    except KafkaException as error:
        raise NotNow(f"Kafka does not answer: {_line(error.args[0].str())}. Start a broker.") from error
    except LedgerUnreachable as error:
        raise NotNow(str(error)) from error
    except psycopg.Error as error:
        raise NotNow(f"PostgreSQL does not answer: {_line(str(error))}. Check that it runs.") from error
    except (Py4JNetworkError, ConnectionError) as error:
        raise VerificationImpossible(
            "Spark's JVM has ended, perhaps because it had too little memory. Start the verification again."
        ) from error
    except (Py4JError, PySparkException) as error:
        raise NotNow(f"Spark failed: {_line(judge(str(error)).text)}. Check that PostgreSQL and Kafka run.") from error


def _line(text: str) -> str:
    return " ".join(text.split())[:_LINE_MAX].rstrip(".")


def _ledgers(conf: Conf) -> list[str]:
    return [f"{conf.name}.ledger", f"outbox-spark-{conf.name}"]


def _id_header(conf: Conf) -> str:
    if not conf.exactly_once.id_header:
        raise OutboxError(
            'OUTBOX["ID_HEADER"] is empty, so messages in Kafka have no ids to compare. Set it. Messages that were '
            "sent before cannot be verified."
        )
    return conf.exactly_once.id_header


def _config(given: list[str]) -> dict[str, str]:
    config = {
        "spark.driver.memory": _MEMORY,
        "spark.sql.shuffle.partitions": "32",
        "spark.ui.showConsoleProgress": "true" if sys.stderr.isatty() else "false",
    }
    for text in given:
        key, separator, value = text.partition("=")
        if not separator:
            raise OutboxError(f"--spark-conf {text!r} has no value. Write NAME=VALUE, e.g. spark.driver.memory=2g.")
        config[key] = value
    return config
