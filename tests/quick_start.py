"""For training scripts of tests: their processes start and end with half the processor time.

A script imports this before torch, calls `start_quickly` once it has imported all, and `end_quickly` as its last line:

    from tests.quick_start import end_quickly, start_quickly

    # isort: split
    import torch

    start_quickly()
    ...
    end_quickly()

The garbage collector does not look through what is being imported again and again, nor through all of it when the
interpreter ends. Stand-ins replace modules that torch imports and no script here uses. A script that is done skips
the teardown of torch's modules.

Not for all scripts: those of examples and documents, and the ranks of tests/torch start as a user's do, and ending.py,
which is about a process' end, has the stand-ins alone. Those of restart mode know nothing of it: see `QUICK_WORKERS` in
tests/process.
"""

from __future__ import annotations

import gc

import tests.torch_stand_ins  # noqa: F401  before torch
from edriver.worker.restart.quick_end import QuickEnd

_end = QuickEnd()  # the hook that is registered first runs last


def start_quickly() -> None:
    """Call this after the last import, and before the first process group and the first optimizer."""
    gc.freeze()
    gc.enable()


def end_quickly() -> None:
    """Call this at the end of the script: the exit hooks run, and then the process ends with 0."""
    _end.code = 0


gc.disable()
