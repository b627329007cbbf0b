import subprocess
import sys

CODE = """
import gc
from outbox.harvest import collector
before = gc.get_threshold()[0]
collector.relax()
assert gc.isenabled() and gc.get_threshold()[0] > 10 * before and gc.get_freeze_count() > 1000
"""


def test_a_harvesting_process_does_not_look_records_through_for_cycles():
    subprocess.run([sys.executable, "-c", CODE], check=True)
