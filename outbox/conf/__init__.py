"""The ``OUTBOX`` settings: parsed once, at first use, with every error reported at once."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from outbox.conf import consistency, parsers
from outbox.conf.consistency import unknown_keys
from outbox.conf.environment import from_env
from outbox.conf.errors import ConfErrors, SettingError, WrongValue, seen
from outbox.conf.parsers import BLOCK, EVENTS, NAME_MAX, SKIP
from outbox.conf.settings import AT_LEAST_ONCE, DEFAULT_TABLE, EXACTLY_ONCE, LANES_MAX, SPECS, Conf, by_key, made

__all__ = [
    "AT_LEAST_ONCE",
    "BLOCK",
    "DEFAULT_TABLE",
    "EVENTS",
    "EXACTLY_ONCE",
    "LANES_MAX",
    "NAME_MAX",
    "SKIP",
    "SPECS",
    "Conf",
    "ConfErrors",
    "SettingError",
    "by_key",
    "current",
    "forget",
    "from_env",
    "parse",
    "seen",
    "table_name",
    "unknown_keys",
]


def parse(raw: Mapping[str, Any]) -> Conf:
    """Parse a dict of settings, or raise `ConfErrors` with every error in it."""
    errors = list(unknown_keys(raw))
    values: dict[str, Any] = {}
    for key, spec in SPECS.items():
        if key in raw:
            try:
                values[key] = spec.metadata["parse"](raw[key])
            except WrongValue as wrong:
                errors.append(SettingError(key, wrong.problem, wrong.hint))
    errors.extend(consistency.settle(values))
    if errors:
        raise ConfErrors(errors)
    consistency.derive(values)
    parsed: Conf = made(Conf, values)
    return parsed


@lru_cache(maxsize=1)
def current() -> Conf:
    """Return the settings of this process, parsed at first use and again after ``override_settings``."""
    from django.conf import settings

    raw = getattr(settings, "OUTBOX", None)
    if raw is not None and not isinstance(raw, Mapping):
        raise ConfErrors([SettingError("", "is not a dict.", "Write OUTBOX = {...} in your settings.")])
    return parse(raw or {})


def forget(*, setting: str = "OUTBOX", **kwargs: Any) -> None:
    """Drop the cached settings (receiver of Django's ``setting_changed``)."""
    if setting in ("OUTBOX", "DATABASES"):
        current.cache_clear()


def table_name() -> str:
    """Return the table's name for models and migrations, which must load even when the settings are wrong."""
    from django.conf import settings

    raw = getattr(settings, "OUTBOX", None) or {}
    try:
        return parsers.table(raw.get("TABLE", DEFAULT_TABLE))
    except (WrongValue, AttributeError):
        return DEFAULT_TABLE
