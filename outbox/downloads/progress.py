"""One line on standard error per step that can take more than a second."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


def say(text: str) -> None:
    print(f"devstack: {text}", file=sys.stderr, flush=True)  # noqa: T201


@contextmanager
def step(text: str) -> Iterator[None]:
    started = time.monotonic()
    say(f"{text} ...")
    yield
    say(f"{text}: {time.monotonic() - started:.1f} s")
