"""A forked child leaves its parent's resources intact. Run in a process of its own: pytest's has threads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

SCRIPT = """
import gc, os
from edriver.worker.watch.forked import keep_in_children

class Thing:
    def __init__(self):
        self.itself = self
    def __del__(self):
        print("destroyed by", "the parent" if os.getpid() == parent else "the child", flush=True)

gc.disable()
parent = os.getpid()
keep_in_children(lambda: ())
Thing()
if os.fork() == 0:
    gc.collect()
    os._exit(0)
os.wait()
print("the child has ended", flush=True)
gc.collect()
"""


def test_a_childs_collector_leaves_inherited_garbage_alone() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stdout.splitlines() == ["the child has ended", "destroyed by the parent"]
