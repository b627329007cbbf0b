"""What people may see of a message: the setting REDACTOR, applied so that its failure never shows what it was given.

A redactor is a function ``(record, text) -> text``. `text` is the beginning of the value (at most `TEXT_MAX`
characters), for a binary value its first bytes in hexadecimal after ``\\x``; then likewise the value of each header.
The record comes without its value columns; reading them costs one query each.
"""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from django.utils.module_loading import import_string

from outbox import conf

if TYPE_CHECKING:
    from outbox.models import OutboxRecord

logger = logging.getLogger("outbox.redaction")

# As much of a value as a page about one record shows, and as a redactor is given.
TEXT_MAX = 10_000

Redactor = Callable[["OutboxRecord", str], str]


def keep(record: "OutboxRecord", text: str) -> str:
    """Show everything: the default."""
    return text


def keeps_everything() -> bool:
    return conf.current().admin.redactor == f"{__name__}.{keep.__name__}"


def redact(record: "OutboxRecord", text: str) -> str:
    """What the configured redactor makes of the text; a note instead of the value when it fails.

    Only the error's class is named: its message may quote the value.
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
