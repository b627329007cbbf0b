"""The pytest plugin, in runs of their own."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SETTINGS = """
import os
import environ
SECRET_KEY = "x"
DATABASES = {"default": environ.Env().db("DATABASE_URL", default="postgresql://nowhere/db")}
SEEN = os.environ.get("OUTBOX_BOOTSTRAP_SERVERS")
USE_TZ = True
"""


@pytest.fixture
def project(tmp_path, empty_environment):
    """A little Django project; runs pytest in it with the plugin."""
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nDJANGO_SETTINGS_MODULE = little\npythonpath = .\naddopts = -p outbox.devstack.pytest_plugin\n"
    )
    (tmp_path / "little.py").write_text(SETTINGS)

    def run(tests, *arguments, **environment):
        (tmp_path / "test_it.py").write_text(tests)
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", *arguments],
            cwd=tmp_path,
            env={**empty_environment, **environment},
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )

    return run


def test_the_addresses_stand_before_django_reads_its_settings(own_servers, project):
    done = project(
        "def test_database(db):\n"
        "    from django.db import connection\n"
        "    with connection.cursor() as cursor:\n"
        "        cursor.execute('SELECT version()')\n"
        "        assert cursor.fetchone()[0].startswith('PostgreSQL 18.')\n"
        "def test_kafka(kafka, bootstrap_servers, settings):\n"
        "    from confluent_kafka.admin import AdminClient\n"
        "    assert settings.SEEN == bootstrap_servers == kafka.bootstrap_servers\n"
        "    assert AdminClient({'bootstrap.servers': bootstrap_servers}).list_topics(timeout=10).brokers\n",
        "-v",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "devstack: Kafka 4.1" in done.stdout
    assert "devstack: starting Kafka 4.1" in done.stdout + done.stderr


def test_nothing_is_started_for_tests_that_do_not_ask_for_it(project):
    done = project("def test_nothing(): pass\n")
    assert done.returncode == 0, done.stdout + done.stderr
    for part in ("Kafka", "PostgreSQL"):
        assert f"starting {part}" not in done.stdout + done.stderr


NO_SERVER = """
import os
from pathlib import Path
import pytest
from django.test import SimpleTestCase, TestCase
from outbox.devstack import Postgres
from outbox.downloads.errors import DevstackError

def test_database(db): pass
def test_transactions(transactional_db): pass
def test_site(live_server): pass
@pytest.mark.django_db
def test_marked(): pass
class OfDjango(TestCase):
    def test_it(self): pass
def test_kafka(kafka): pass
def test_addresses(bootstrap_servers): pass
def test_kafka_of_its_own(kafka_factory): pass
def test_postgres_of_its_own(postgres_factory): pass
def test_servers_of_its_own(own_servers): pass

class WithoutDatabase(SimpleTestCase):
    def test_it(self): pass
def test_plain():
    assert not {"DATABASE_URL", "OUTBOX_BOOTSTRAP_SERVERS"} & set(os.environ)
    assert [path.read_text() for path in Path("/proc/self/task").glob("*/children") if path.read_text()] == []
def test_undeclared():
    server = Postgres()
    try:
        with pytest.raises(DevstackError, match="use one of the fixtures postgres, kafka and own_servers"):
            server.start()
    finally:
        server.discard()
"""


@pytest.mark.parametrize("workers", [(), ("-n", "1")])
def test_without_servers_the_tests_that_need_none_run_and_nothing_starts(project, workers):
    done = project(NO_SERVER, "--no-servers", *workers)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout
    assert "starting" not in done.stdout + done.stderr
    assert "devstack:" not in done.stdout + done.stderr


def test_collecting_starts_nothing(project):
    done = project("def test_it(kafka, postgres): pass\n", "--collect-only")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "starting" not in done.stdout + done.stderr
    assert "devstack:" not in done.stdout + done.stderr


def test_given_addresses_are_used(project):
    done = project(
        "import os\n"
        "def test_it(kafka, postgres, bootstrap_servers):\n"
        "    assert kafka is postgres is None\n"
        "    assert bootstrap_servers == 'x:1'\n",
        DATABASE_URL="postgresql://x/y",
        OUTBOX_BOOTSTRAP_SERVERS="x:1",
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("workers", [(), ("-n", "1")])
def test_what_cannot_start_is_left_out_with_a_line_or_ends_the_run_in_ci(project, tmp_path, workers):
    """A cache that cannot be filled: a folder is in the place of its lock."""
    (tmp_path / "cache" / ".lock").mkdir(parents=True)
    broken = {"OUTBOX_DEVSTACK_CACHE": str(tmp_path / "cache")}
    tests = "def test_it(kafka): pass\ndef test_other(): pass\n"
    done = project(tests, *workers, **broken)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed, 1 skipped" in done.stdout
    assert "devstack: tests that need Kafka were skipped" in done.stdout
    required = project(tests, *workers, OUTBOX_TEST_REQUIRE="1", **broken)
    assert required.returncode == 3, required.stdout + required.stderr
    assert "this run requires it" in required.stdout + required.stderr


def test_parallel_workers_share_kafka_and_have_a_postgresql_each(own_servers, project):
    """Each of the two tests waits for the file of the other, so both workers must have run."""
    done = project(
        "import time\n"
        "import pytest\n"
        "@pytest.mark.parametrize('number', [1, 2])\n"
        "def test_it(db, number, bootstrap_servers, postgres, kafka, worker_id, tmp_path_factory):\n"
        "    from django.db import connection\n"
        "    from confluent_kafka.admin import AdminClient\n"
        "    assert postgres.is_running\n"
        "    assert kafka is None\n"
        "    assert AdminClient({'bootstrap.servers': bootstrap_servers}).list_topics(timeout=10).brokers\n"
        "    with connection.cursor() as cursor:\n"
        "        cursor.execute('SELECT inet_server_port()')\n"
        "        assert cursor.fetchone()[0] == int(postgres.port)\n"
        "    folder = tmp_path_factory.getbasetemp().parent\n"
        "    (folder / f'{worker_id}.part').write_text(bootstrap_servers + str(number))\n"
        "    (folder / f'{worker_id}.part').rename(folder / worker_id)\n"  # never seen half written
        "    until = time.monotonic() + 30\n"
        "    while not all((folder / name).exists() for name in ('gw0', 'gw1')):\n"
        "        assert time.monotonic() < until\n"
        "        time.sleep(0.01)\n"
        "    assert [(folder / name).read_text()[:-1] for name in ('gw0', 'gw1')] == [bootstrap_servers] * 2\n",
        "-n",
        "2",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (done.stdout + done.stderr).count("starting Kafka 4.1.2 ...") == 1


@pytest.mark.parametrize("workers", [(), ("-n", "1")])
def test_a_failed_run_keeps_its_logs_and_names_them(own_servers, project, workers):
    done = project("def test_it(postgres): assert False\n", *workers)
    assert done.returncode == 1
    kept = [line for line in done.stdout.splitlines() if "this run kept its log" in line]
    (log,) = [line.rpartition(" ")[2] for line in kept if "postgres" in line]
    assert "database system is ready" in Path(log).read_text()
    for line in kept:
        shutil.rmtree(Path(line.rpartition(" ")[2]).parent)
