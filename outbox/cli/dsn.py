"""Data sources as Go's PostgreSQL driver reads them, turned into an entry of Django's DATABASES.

Both forms: ``host=... dbname=...`` and ``postgres://...``. It differs from libpq on purpose, because the same file must
lead to the same server: TLS is required unless the source says otherwise, the host is localhost, and an unknown key is
a run-time parameter of the server.
"""

import getpass
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

SSL_MODES = ("disable", "require", "verify-ca", "verify-full")

# libpq takes these under the same names.
_LIBPQ = frozenset(
    (
        *("application_name", "channel_binding", "client_encoding", "connect_timeout", "fallback_application_name"),
        *("gssencmode", "hostaddr", "keepalives", "keepalives_count", "keepalives_idle", "keepalives_interval"),
        *("krbsrvname", "load_balance_hosts", "passfile", "require_auth", "sslcert", "sslcompression", "sslcrl"),
        *("sslkey", "sslmode", "sslnegotiation", "sslpassword", "sslrootcert", "sslsni", "ssl_max_protocol_version"),
        *("ssl_min_protocol_version", "target_session_attrs", "tcp_user_timeout"),
    )
)
_PLACES = {"host": "HOST", "port": "PORT", "user": "USER", "password": "PASSWORD", "dbname": "NAME"}
# Instructions to the Go driver itself, without meaning for the server.
_GO_ONLY = frozenset({"binary_parameters", "disable_prepared_binary_result", "krbspn", "sslinline"})
_VARIABLES = {
    "PGHOST": "host",
    "PGPORT": "port",
    "PGUSER": "user",
    "PGPASSWORD": "password",
    "PGDATABASE": "dbname",
    "PGSSLMODE": "sslmode",
    "PGSSLCERT": "sslcert",
    "PGSSLKEY": "sslkey",
    "PGSSLROOTCERT": "sslrootcert",
    "PGAPPNAME": "application_name",
    "PGCONNECT_TIMEOUT": "connect_timeout",
    "PGOPTIONS": "options",
}
_KEY = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_.]*)\s*=")


class BadDataSource(ValueError):
    """The text is not a data source. The message never repeats it, because it may hold a password."""


def parse(text: str) -> dict[str, str]:
    """The keys and values of a data source in either form."""
    if re.match(r"postgres(ql)?://", text):
        return _from_url(text)
    return _from_pairs(text)


def _from_pairs(text: str) -> dict[str, str]:
    values: dict[str, str] = {}
    at = 0
    while text[at:].strip():
        found = _KEY.match(text, at)
        if not found:
            raise BadDataSource(
                f'has no "=" after a key at character {at + 1}. Write e.g. "host=localhost port=5432 user=app '
                'password=secret dbname=shop sslmode=disable".'
            )
        values[found[1]], at = _value(text, found.end())
    return values


def _value(text: str, at: int) -> tuple[str, int]:
    """One value, quoted or not, and its end.

    Both libpq and the Go driver skip blanks after the "=", so that ``password= dbname=shop`` means the password
    "dbname=shop" to them. Nobody who writes it means that: a key that follows an empty value begins the next pair.
    """
    blanks = re.compile(r"\s*").match(text, at)
    start = blanks.end() if blanks else at
    if start > at and _KEY.match(text, start):
        return "", start
    if text[start : start + 1] == "'":
        quoted = re.compile(r"'((?:[^'\\]|\\.)*)'(?=\s|$)", re.DOTALL).match(text, start)
        if not quoted:
            raise BadDataSource("has an unterminated quoted value. Close the quote; write \\' for a quote inside.")
        return re.sub(r"\\(.)", r"\1", quoted[1], flags=re.DOTALL), quoted.end()
    plain = re.compile(r"(?:[^\s\\]|\\.)*", re.DOTALL).match(text, start)
    assert plain is not None
    if text[plain.end() : plain.end() + 1] == "\\":
        raise BadDataSource("ends in a backslash. Write \\\\ for one backslash.")
    return re.sub(r"\\(.)", r"\1", plain[0], flags=re.DOTALL), plain.end()


def _from_url(text: str) -> dict[str, str]:
    try:
        url = urlsplit(text)
        port = url.port
    except ValueError:
        raise BadDataSource(
            'is not a valid URL. Write e.g. "postgres://app:secret@localhost:5432/shop?sslmode=disable"; escape '
            "special characters of the password by %XX."
        ) from None
    parts = {
        "user": unquote(url.username or ""),
        "password": unquote(url.password or ""),
        "host": unquote(url.hostname or ""),
        "port": str(port or ""),
        "dbname": unquote(url.path.removeprefix("/")),
    }
    return {**{key: value for key, value in parts.items() if value}, **dict(parse_qsl(url.query))}


def django_database(text: str, environ: Mapping[str, str], schema: str = "") -> dict[str, Any]:
    """The entry of DATABASES. If `schema` is given, PostgreSQL searches only that one for tables."""
    inherited = {key: environ[variable] for variable, key in _VARIABLES.items() if environ.get(variable)}
    values = {"host": "localhost", "port": "5432", "sslmode": "require", **inherited, **parse(text)}
    values["user"] = values.get("user") or _login()
    values["dbname"] = values.get("dbname") or values["user"]
    values["sslmode"] = values["sslmode"] or "require"
    _judge(values)
    entry: dict[str, Any] = {"ENGINE": "django.db.backends.postgresql"}
    entry |= {place: values.get(key, "") for key, place in _PLACES.items()}
    options = {key: value for key, value in values.items() if key in _LIBPQ and value}
    runtime = [values["options"]] if values.get("options") else []
    runtime += [_runtime(key, value) for key, value in values.items() if _is_runtime(key)]
    if schema:
        runtime.append(search_path(schema))
    if runtime:
        options["options"] = " ".join(runtime)
    return {**entry, "OPTIONS": options}


def search_path(schema: str) -> str:
    """The server option that makes `schema` the only one searched for tables."""
    return _runtime("search_path", '"' + schema.replace('"', '""') + '"')


def _judge(values: Mapping[str, str]) -> None:
    if values["sslmode"] not in SSL_MODES:
        raise BadDataSource(f"has sslmode={values['sslmode']!r}. Set one of: {', '.join(SSL_MODES)}.")
    if not re.fullmatch(r"\d{1,5}(,\d{1,5})*", values["port"]):
        raise BadDataSource(f"has port={values['port']!r}. Set a number, e.g. 5432.")
    if not re.fullmatch(r"-?\d*", values.get("connect_timeout", "")):
        raise BadDataSource(f"has connect_timeout={values['connect_timeout']!r}. Set whole seconds, e.g. 10.")


def _is_runtime(key: str) -> bool:
    return key not in _LIBPQ and key not in _PLACES and key not in _GO_ONLY and key != "options"


def _runtime(key: str, value: str) -> str:
    # Blanks separate the options of the server's command line; a backslash keeps one inside a value.
    return f"-c {key}=" + re.sub(r"([\s\\])", r"\\\1", value)


def _login() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "postgres"
