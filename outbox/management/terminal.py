"""What a command writes on a terminal besides its result."""

from __future__ import annotations

from collections.abc import Callable

from django.core.management.base import OutputWrapper


def writer(stdout: OutputWrapper) -> Callable[[str], None]:
    """Without line ends, and at once."""

    def write(text: str) -> None:
        stdout.write(text, ending="")
        stdout.flush()

    return write
