"""``outbox-harvest -f reaper.yaml``: the harvester as a program of its own, without a Django project.

Exit codes: 0 after SIGTERM or SIGINT, with all records in flight finished; 1 when the harvester had to stop, or could
not finish the records in flight in time; 2 when the flags or the configuration cannot be used; 5 when a second signal
forced it, so that the records in flight are sent again."""

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from outbox import __version__, conf
from outbox.cli import configuration, logs, options
from outbox.cli.configuration import Configuration
from outbox.exceptions import OutboxError
from outbox.service.process_signals import FORCED, ProcessSignals

OK, FAILED, UNUSABLE = 0, 1, 2

logger = logging.getLogger("outbox.cli")


def main(arguments: Sequence[str] | None = None, environment: Mapping[str, str] | None = None) -> int:
    given = options.parser().parse_args(arguments)
    if not given.file:
        return _refuse("The flag -f is not set. Name the configuration: outbox-harvest -f reaper.yaml")
    try:
        text = Path(given.file).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        return _refuse(f"The program cannot read {given.file}: {error}. Name a readable YAML file in UTF-8.")
    try:
        found = configuration.settle(
            text, given.file, os.environ if environment is None else environment, options.from_flags(given), os.getpid()
        )
    except (configuration.ConfigurationRefused, OutboxError) as error:
        return _refuse(*str(error).splitlines())
    if given.check:
        sys.stdout.write("\n".join(describe(found)) + "\n")
        return OK
    return run(found, given.file, fail_fast=given.fail_fast)


def _refuse(*reasons: str) -> int:
    for reason in reasons:
        sys.stderr.write(f"Error: {reason}\n")
    return UNUSABLE


def describe(found: Configuration) -> list[str]:
    """The final values, without any that may be secret."""
    properties = {"KAFKA": found.conf.kafka.properties, "PRODUCER": found.conf.kafka.producer}
    values = conf.by_key(found.conf)
    shown = [f"{setting}={values[setting]}" for setting in sorted(options.SETTINGS) if setting not in properties]
    shown += [f"{setting} has {', '.join(sorted(values)) or 'nothing'}" for setting, values in properties.items()]
    place = found.database
    shown.append(f"database={place.get('HOST')}:{place.get('PORT')}/{place.get('NAME')} user={place.get('USER')}")
    return [
        *shown,
        f"log level={found.level}",
        f"member={found.member_name}",
        *(f"note: {note}" for note in found.notes),
    ]


def run(found: Configuration, file: str, *, fail_fast: bool = False) -> int:
    """Harvest until a signal or a fatal error."""
    logs.configure(found.level)
    logger.info(
        "starting version=%s file=%s executable=%s working_directory=%s", __version__, file, sys.executable, os.getcwd()
    )
    for note in found.notes:
        logger.warning("configuration_note %s", note)
    _set_up_django(found)
    from outbox.harvest.harvester import Harvester
    from outbox.service import garbage

    garbage.relax()
    try:
        harvester = Harvester(found.conf, member_name=found.member_name, fail_fast=fail_fast)
        signals = ProcessSignals(lambda force: harvester.stop(force=force))
        signals.install()
        harvester.start()
        harvester.wait()
    except Exception as error:
        # The daemon has logged the error already, with a traceback where that helps.
        return _fail(error)
    return FORCED if signals.is_forced else OK


def _fail(error: Exception) -> int:
    sys.stderr.write(f"Error: {error}\n")
    return FAILED


def _set_up_django(found: Configuration) -> None:
    """The part of Django that the harvester uses: the database alias and the app's own settings."""
    import django
    from django.conf import settings

    settings.configure(
        INSTALLED_APPS=["outbox"],
        DATABASES={"default": found.database},
        OUTBOX=found.settings,
        USE_TZ=True,
        LOGGING_CONFIG=None,
    )
    django.setup()


def entry() -> None:
    """The console script."""
    sys.exit(main())


if __name__ == "__main__":
    entry()
