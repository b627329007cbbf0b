"""One Spark session for all tests of this folder: a JVM takes seconds to start."""

import gc
import importlib.util
import os
import warnings
from pathlib import Path

import pytest

from tests.spark.tables import make_outbox
from tests.support.databases import django, fresh_database

MISSING = [name for name in ("pyspark", "pyarrow", "pandas") if importlib.util.find_spec(name) is None]
if MISSING:
    if os.environ.get("CI", "").lower() not in ("", "0", "false"):
        raise pytest.UsageError(f"{', '.join(MISSING)} must be installed in CI: pip install -e '.[dev]'")
    collect_ignore_glob = ["*"]


def pytest_terminal_summary(terminalreporter):
    if MISSING:
        terminalreporter.line(f"left out: tests/spark, for want of {', '.join(MISSING)} (pip install -e '.[dev]')")


SECRET = {"spark.hadoop.fs.s3a.secret.key": "not-for-the-list-of-processes"}
CONFIG = {
    **SECRET,
    "spark.ui.enabled": "false",
    "spark.driver.memory": "512m",
    "spark.driver.maxResultSize": "1m",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.streaming.metricsEnabled": "false",
}


def pytest_collection_modifyitems(items):
    """PySpark leaves the sockets between Python and its JVM to the garbage collector, and a JVM starts slowly."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            if item.get_closest_marker("timeout") is None:  # one that is added here would come before a module's
                item.add_marker(pytest.mark.timeout(400))
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))


@pytest.fixture(scope="module", autouse=True)
def collected():
    """The sockets are closed before a test of another folder can see them."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(scope="session", autouse=True)
def scratch(tmp_path_factory):
    """The folder of Spark's blocks: killed drivers leave theirs behind, and pytest removes them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_LOCAL_DIRS", str(tmp_path_factory.mktemp("spark")))
        yield


@pytest.fixture(scope="session")
def spark(own_servers):
    import outbox.spark

    session = outbox.spark.session("tests", "local[2]", CONFIG)
    session.sparkContext.setLogLevel("OFF")
    outbox.spark.register(session)
    yield session
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        session.stop()
        gc.collect()


@pytest.fixture(scope="module")
def migrated(postgres):
    """The URL of a database with the tables, for all tests of a module; each takes a table of its own."""
    with fresh_database(os.environ["DATABASE_URL"]) as url:
        done = django("migrate", "outbox", url=url)
        assert done.returncode == 0, done.stderr
        yield url


@pytest.fixture
def outbox_table(migrated):
    return make_outbox(migrated)


@pytest.fixture
def engines(outbox_table, bootstrap_servers, tmp_path):
    """Makes processes of the engine on a table of the test's own."""
    from tests.spark.engines import Engines

    made = []

    def make(**given):
        made.append(Engines(outbox_table, bootstrap_servers, tmp_path, **given))
        return made[-1]

    yield make
    for found in made:
        found.discard()
