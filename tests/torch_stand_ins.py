"""Stand-ins for parts of torch: a process that imports this before torch imports it in two thirds of the time.

Torch imports them as it is imported, or with the first process group, and looks into none of them where a small model
is trained and nothing is compiled. Each becomes the real module as soon as anything else is taken from it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

COMPILER = "torch._dynamo"
"""The first process group and the first optimizer of a process import it, which takes a second."""

META_FUNCTIONS = "torch._meta_registrations"
"""What operators do with tensors of the meta device, which raise NotImplementedError without it."""

UNUSED = {
    COMPILER,
    META_FUNCTIONS,
    "torch.ao",
    "torch.distributions",
    "torch.export",
    "torch.masked",
    "torch.nn.intrinsic",
    "torch.nn.qat",
    "torch.nn.quantizable",
    "torch.nn.quantized",
    "torch.quantization",
}


def _keep(function: Any, recursive: bool = True, wrapping: bool = True) -> Any:
    return function


COMPILER_PARTS = {
    "utils": SimpleNamespace(get_optimize_ddp_mode=lambda: "ddp_optimizer"),
    "trace_rules": SimpleNamespace(clear_lru_cache=lambda: None),
    "disable": _keep,
    "graph_break": lambda: None,
}
"""What of torch's compiler is called where nothing is compiled."""


class _StandIn(ModuleType):
    """An empty module, which becomes the real one as soon as something is taken from it."""

    def __getattr__(self, name: str) -> Any:
        stands_in = sys.modules.get(self.__name__) is self
        if name.startswith("__") and not (stands_in and name == "__path__"):  # what is asked of every module
            raise AttributeError(name)
        if stands_in:
            UNUSED.discard(self.__name__)
            del sys.modules[self.__name__]
            for part in COMPILER_PARTS:
                vars(self).pop(part, None)
            importlib.import_module("torch._prims")  # in a circle with others, which holds if it comes first
        return getattr(importlib.import_module(self.__name__), name)


class _Finder:
    """Finds a stand-in where the module would be imported for the first time."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name in UNUSED else None  # type: ignore[arg-type]  # it is all of a loader

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ == COMPILER:
            vars(module).update(COMPILER_PARTS)
        elif module.__name__ == META_FUNCTIONS:
            torch = sys.modules["torch"]  # without this, which torch._prims does, there is no torch.Generator
            torch._C._set_generator_metaclass(importlib.import_module("torch._opaque_base").OpaqueBaseMeta)


sys.meta_path.insert(0, _Finder())
