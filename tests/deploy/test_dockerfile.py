"""The Dockerfile passes its linter and starts a command that exists. `.ci/image` runs its RUN lines."""

import json
import subprocess
import sysconfig
from pathlib import Path

from tests.deploy.files import DOCKERFILE, instructions
from tests.document_blocks.shell import judge


def test_the_linter_finds_nothing(tmp_path):
    linter = Path(sysconfig.get_path("scripts")) / "hadolint"
    done = subprocess.run([linter, DOCKERFILE], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_process_gets_signals_and_is_not_root():
    last = dict(instructions())
    judge(" ".join(json.loads(last["CMD"])))
    assert last["USER"] == "10001:10001"
