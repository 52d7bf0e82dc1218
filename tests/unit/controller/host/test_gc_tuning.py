"""Loaded objects are left out of garbage collection, tested in a process of its own."""

import subprocess
import sys

from reconciler.controller.host import gc_tuning

PROGRAM = """
import gc
from reconciler.controller.host import gc_tuning
held = [[] for _ in range(1000)]
gc_tuning.settle()
print(gc.get_threshold(), gc.get_freeze_count() >= 1000)
"""


def test_what_is_there_is_left_out_and_looks_are_fewer() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    wanted = (gc_tuning.COLLECT_EVERY, gc_tuning.OLDER_EVERY, gc_tuning.OLDEST_EVERY)
    assert done.stdout.strip() == f"{wanted} True"
