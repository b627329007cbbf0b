"""A process whose wall clock a test sets, as an operator or a time service sets that of a machine."""

import shutil
import struct
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("wall_clock.c")
LEFT_OUT = "left out: a wall clock that is set, because there is no C compiler for glibc"


class WallClock:
    """`environment` is for the processes that have it."""

    def __init__(self, folder: Path) -> None:
        library, self._step = folder / "wall_clock.so", folder / "wall_clock.step"
        compiler = shutil.which("cc")
        built = compiler and subprocess.run(
            [compiler, "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-lpthread"], capture_output=True, check=False
        )
        if not built or built.returncode:
            pytest.skip(LEFT_OUT)
        self._step.write_bytes(struct.pack("q", 0))
        self.environment = {"LD_PRELOAD": str(library), "CLOCK_STEP": str(self._step)}

    def set(self, ahead_s: float) -> None:
        """So many seconds ahead of the machine's clock."""
        with self._step.open("r+b", buffering=0) as file:
            file.write(struct.pack("q", int(ahead_s * 1e9)))
