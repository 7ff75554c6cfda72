"""For training scripts of tests: their processes start and end with half the processor time.

A script imports this before torch, and calls `start_quickly` once it has imported all:

    from tests.quick_start import start_quickly

    # isort: split
    import torch

    start_quickly()

The garbage collector does not look through what is being imported again and again, nor through all of it when the
interpreter ends. A stand-in takes the place of torch's compiler, as nothing is compiled.

Not for all scripts: ending.py, which is about a process' end, those of restart mode, whose standbys import what a
script did, those of examples and documents, and the ranks of tests/torch start as a user's do.
"""

from __future__ import annotations

import gc
import importlib
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

COMPILER = "torch._dynamo"
"""The first process group and the first optimizer of a process import it, which takes a second."""


def start_quickly() -> None:
    """Call this after the last import, and before the first process group and the first optimizer."""
    sys.modules.setdefault(COMPILER, _StandIn(COMPILER))
    gc.freeze()
    gc.enable()


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


gc.disable()
