"""systemd takes the units, and they start commands that exist."""

import configparser
import os
import shutil
import subprocess
import sys

import pytest

from tests.deploy.files import UNITS
from tests.document_blocks.shell import judge


def section(path):
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str
    parser.read_string(path.read_text())
    return parser["Service"]


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_systemd_takes_a_unit(unit, tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    # systemd refuses a program that does not exist.
    (tmp_path / unit.name).write_text(unit.read_text().replace(section(unit)["ExecStart"].split()[0], sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(tmp_path / unit.name)],
        capture_output=True, text=True, check=False, env=os.environ | {"SYSTEMD_LOG_LEVEL": "warning"},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_a_unit_starts_a_command_that_exists_and_waits_for_its_stop(unit):
    service = section(unit)
    judge(service["ExecStart"])
    assert int(service["TimeoutStopSec"]) == {"harvest": 60, "consume": 90}[service["ExecStart"].split()[2]]
    assert service["Restart"] == "always"
