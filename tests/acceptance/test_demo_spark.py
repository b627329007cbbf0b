"""`make demo SPARK=1`'s program, inside its own devstack: the Spark engine harvests, then the verification checks the
result."""

import importlib.util
import os
import subprocess
import sys

import pytest

from tests.support.databases import ROOT

pytestmark = [
    pytest.mark.torture,  # for its length: servers and a JVM of its own
    pytest.mark.timeout(900),
    pytest.mark.skipif(importlib.util.find_spec("pyspark") is None, reason="the extra spark is not installed"),
]


def test_the_demo_harvests_with_spark_and_the_verification_agrees(own_servers):
    left_out = ("DATABASE_URL", "OUTBOX_BOOTSTRAP_SERVERS", "DJANGO_SETTINGS_MODULE")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "outbox.devstack", "run", "--"),
            *(sys.executable, "example_project/demo.py", "--heroes", "500", "--spark"),
        ],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name not in left_out},
        capture_output=True,
        text=True,
        timeout=840,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    for name, expected in (("delivered", "500"), ("lost", "0"), ("doubled", "0"), ("phantoms", "0")):
        assert [name, expected] in lines
    assert any(line[:1] == ["checked"] and line[-2:] == ["500", "records"] for line in lines), done.stdout
    assert done.stdout.splitlines()[-1] == "result: nothing lost, nothing twice, order kept"
