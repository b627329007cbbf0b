"""Settings from variables of the environment."""

import os
from typing import Any

from outbox.conf.settings import SPECS

# Variables with the prefix that are not settings; the last three belong to outbox-harvest.
_NOT_SETTINGS = ("FAILPOINTS", "DEVSTACK_", "TEST_", "DEMO_", "DATA_SOURCE", "LOG_LEVEL", "MEMBER_NAME")


def from_env(env: Any = None, prefix: str = "OUTBOX_") -> dict[str, Any]:
    """Build the OUTBOX dict from ``OUTBOX_*`` variables. A setting without a variable keeps its default.

    This function only converts types. `parse` checks the values, so that it reports all errors together.
    """
    import environ

    env = env or environ.Env()
    result: dict[str, Any] = {}
    for variable in sorted(env.ENVIRON if hasattr(env, "ENVIRON") else os.environ):
        key = variable.removeprefix(prefix)
        if key == variable or key.startswith(_NOT_SETTINGS):
            continue
        result[key] = _shape(env, variable, SPECS[key]) if key in SPECS else env.str(variable)
    return result


def _shape(env: Any, variable: str, spec: Any) -> Any:
    text = env.str(variable)
    kind = spec.type if isinstance(spec.type, str) else getattr(spec.type, "__name__", str(spec.type))
    try:
        if kind == "bool":
            lowered = text.strip().lower()
            if lowered in env.BOOLEAN_TRUE_STRINGS:
                return True
            return False if lowered in ("false", "off", "no", "n", "0") else text
        if kind in ("int", "float"):
            return int(text) if kind == "int" else float(text)
        if kind == "Mapping":
            return env.json(variable) if text.lstrip().startswith("{") else env.dict(variable)
    except ValueError:
        pass
    return text
