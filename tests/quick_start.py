"""For training scripts of tests: their processes start and end with half the processor time.

Not for all of them: ending.py, which is about a process' end, that of benchmarks, which tests/process/test_churn.py
runs, those of examples and documents, and the ranks of tests/torch start as a user's do.
"""

from __future__ import annotations

import gc
import importlib
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

COMPILER = "torch._dynamo"


def start_quickly() -> None:
    """Call this before the first process group and the first optimizer: both import torch's compiler, for a second.

    A stand-in takes its place, as nothing is compiled. Nor does the garbage collector look any more at what has been
    imported, which takes another 0.7 s when the interpreter ends.
    """
    if COMPILER not in sys.modules:
        sys.modules[COMPILER] = _StandIn(COMPILER)
    gc.freeze()


class _StandIn(ModuleType):
    """What of torch's compiler is called where nothing is compiled. For anything else it becomes the real one."""

    utils = SimpleNamespace(get_optimize_ddp_mode=lambda: "ddp_optimizer")
    trace_rules = SimpleNamespace(clear_lru_cache=lambda: None)

    @staticmethod
    def disable(function: Any, recursive: bool = True, wrapping: bool = True) -> Any:
        return function

    @staticmethod
    def graph_break() -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if sys.modules[COMPILER] is self:
            del sys.modules[COMPILER]
        return getattr(importlib.import_module(COMPILER), name)
