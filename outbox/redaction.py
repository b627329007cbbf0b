"""The setting REDACTOR: it decides what the admin shows of a message. When it fails, the admin does not show its input.

A redactor is a function ``(record, text) -> text``. The admin calls it with the beginning of the value (at most
`TEXT_MAX` characters), then with the value of each header. For a binary value, `text` has its first bytes in
hexadecimal after ``\\x``. The value columns of the record are deferred: each costs a query when the function reads it.
"""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from django.utils.module_loading import import_string

from outbox import conf

if TYPE_CHECKING:
    from outbox.models import OutboxRecord

logger = logging.getLogger("outbox.redaction")

# A page about one record shows this much of a value, and a redactor gets this much.
TEXT_MAX = 10_000

Redactor = Callable[["OutboxRecord", str], str]


def keep(record: "OutboxRecord", text: str) -> str:
    """Show everything. This is the default."""
    return text


def keeps_everything() -> bool:
    return conf.current().admin.redactor == f"{__name__}.{keep.__name__}"


def redact(record: "OutboxRecord", text: str) -> str:
    """Return the text that the configured redactor returns, or a note when it fails.

    The note and the log name only the class of the error: its message may quote the value.
    """
    try:
        redactor: Redactor = import_string(conf.current().admin.redactor)
        redacted = redactor(record, text)
        if not isinstance(redacted, str):
            raise TypeError
    except Exception as error:
        kind = type(error).__name__
        logger.warning("redactor_failed record=%s redactor=%s error=%s", record.pk, conf.current().admin.redactor, kind)
        return f'(hidden: OUTBOX["REDACTOR"] failed with {kind})'
    return redacted
