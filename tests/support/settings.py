"""Settings that differ in a few values."""

from typing import Any

from outbox.conf import SPECS, Conf, by_key
from outbox.conf.settings import made


def changed(conf: Conf, **values: Any) -> Conf:
    """With these instead, by their keys and not parsed: a simulation wants shorter times than a user may set."""
    assert values.keys() <= SPECS.keys(), values.keys() - SPECS.keys()
    found: Conf = made(Conf, {**by_key(conf), **values})
    return found
