"""Starting a Spark session that works on any machine: Java, the Kafka connector, Python and addresses."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from outbox.conf import secrets
from outbox.documents import install
from outbox.exceptions import MissingExtra

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NEEDED = {"pyspark": "spark", "pyarrow": "spark", "pandas": "spark", "google.protobuf": "spark"}
_LOOPBACK = "127.0.0.1"


def session(
    name: str = "outbox",
    master: str = "local[2]",
    config: Mapping[str, str] | None = None,
    *,
    kafka: bool = True,
    show_ui: bool = True,
) -> SparkSession:
    """A running session. `config` wins over every setting of this function.

    `kafka`: with Spark's own Kafka connector, which `spark.read.format("kafka")` needs; source and sink of this
    package do not. The driver listens on 127.0.0.1. If executors run on other machines, set `spark.driver.host` and
    `spark.driver.bindAddress`.
    """
    check_extra()
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    prepare_environment()
    given: dict[str, Any] = {
        "spark.app.name": name,
        "spark.master": master,
        **_defaults(kafka and "spark.jars" not in (config or {})),
    }
    given |= config or {}
    # A JVM shows its start settings in its command line. So secrets are set afterwards, through a connection.
    open_to_all = [pair for pair in given.items() if not secrets.is_secret(pair[0])]
    SparkContext._ensure_initialized(conf=SparkConf(loadDefaults=False).setAll(open_to_all))
    spark = SparkSession.builder.config(map=given).getOrCreate()
    if show_ui and spark.sparkContext.uiWebUrl:
        print(f"Spark's web interface: {spark.sparkContext.uiWebUrl}", file=sys.stderr, flush=True)  # noqa: T201
    return spark


def check_extra() -> None:
    """Raise `MissingExtra`, one line, when a package that Spark needs is absent."""
    for module, extra in _NEEDED.items():
        if not _is_installed(module):
            raise MissingExtra(f"Spark needs the package {module}, which is not installed. Run: {install(extra)}")


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package that contains it
        return False


def prepare_environment() -> None:
    """Variables for Spark's scripts and Python workers, and for processes that `spark-class` starts."""
    from outbox.spark import java_and_jars

    os.environ["JAVA_HOME"] = str(java_and_jars.java().home)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)
    os.environ.setdefault("SPARK_HOME", str(java_and_jars.home()))


def _defaults(with_connector: bool) -> dict[str, str]:
    found = {
        "spark.driver.host": _LOOPBACK,
        "spark.driver.bindAddress": _LOOPBACK,
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.showConsoleProgress": "false",
        "spark.python.daemon.module": "outbox.spark.python_daemon",
    }
    if with_connector:
        from pyspark import __version__ as version

        from outbox.spark import java_and_jars

        found["spark.jars"] = ",".join(map(str, java_and_jars.connector(version)))
    return found


def exposed(config: Mapping[str, str]) -> list[str]:
    """A warning about secrets that came with --spark-conf."""
    names = [name for name in config if secrets.is_secret(name)]
    instead = (
        "Put it into the file spark-defaults.conf, readable by this user alone, in a folder that SPARK_CONF_DIR names."
    )
    return [secrets.warning_of("--spark-conf", names, instead)] if names else []
