import subprocess
import sys

RELAXED = """
import gc
from outbox.service import garbage
before = gc.get_threshold()[0]
garbage.relax()
assert gc.isenabled() and gc.get_threshold()[0] > 10 * before and gc.get_freeze_count() > 1000
"""
COLLECTED = """
import time, weakref
from outbox.service import garbage
garbage._EVERY_S = 0.1
garbage.relax()

class Node: pass

node = Node()
node.itself, gone = node, weakref.ref(node)
del node
give_up_at = time.monotonic() + 20
while gone() is not None:
    assert time.monotonic() < give_up_at
    time.sleep(0.02)
"""


def test_a_harvesting_process_does_not_look_records_through_for_cycles():
    subprocess.run([sys.executable, "-c", RELAXED], check=True)


def test_it_frees_cycles_all_the_same():
    subprocess.run([sys.executable, "-c", COLLECTED], check=True)
