"""Stand-ins for parts of torch: a process that imports this before torch imports it in half of the time.

Torch imports them as it is imported, or with the first process group, and looks into none of them where a small model
is trained and nothing is compiled. Each becomes the real module as soon as anything else is taken from it; what torch
takes from one by name while it is imported itself (`from torch.func import vmap`), as soon as it is used.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType, SimpleNamespace
from typing import Any

COMPILER = "torch._dynamo"
"""The first process group and the first optimizer of a process import it, which takes a second."""

META_FUNCTIONS = "torch._meta_registrations"
"""What operators do with tensors of the meta device, which raise NotImplementedError without it."""

SYMBOLIC_SHAPES = "torch.fx.experimental.symbolic_shapes"
"""What torch.distributed.tensor takes a few names from, and imports sympy with: half a second."""

UNUSED = {
    COMPILER,
    META_FUNCTIONS,
    SYMBOLIC_SHAPES,
    "dill",
    "opt_einsum",
    "torch._higher_order_ops",
    "torch._native",
    "torch._precompile",
    "torch._subclasses",
    "torch.ao",
    "torch.compiler.precompile",
    "torch.distributions",
    "torch.export",
    "torch.func",
    "torch.hub",
    "torch.masked",
    "torch.nn.intrinsic",
    "torch.nn.qat",
    "torch.nn.quantizable",
    "torch.nn.quantized",
    "torch.quantization",
    "torchgen",
    "unittest",
}

IN_CIRCLES = ["torch.func", "torch._higher_order_ops", "torch._prims"]
"""What imports one another in circles, which hold if all come in this order, as where torch is imported as a whole."""

PARTS_OF_CIRCLES = {
    "torch._decomp",
    "torch._dispatch",
    "torch._functorch._aot_autograd",
    "torch._functorch.eager_transforms",
    "torch._prims",
    "torch._refs",
    "torch.fx.experimental.const_fold",
    "torch.fx.experimental.proxy_tensor",
    "torch.fx.passes",
    "torch.utils._debug_mode",
    "torch.utils.checkpoint",
}
"""The rest of those circles, which torch imports with them: where one of these is imported, all of it is."""


def _keep(function: Any, recursive: bool = True, wrapping: bool = True) -> Any:
    return function


def _of_plain_sizes(name: str) -> Any:
    """A function of SYMBOLIC_SHAPES of what has been compared: the real one, unless that were two numbers."""

    def function(compared: Any) -> Any:
        if isinstance(compared, bool):
            return compared
        module = importlib.import_module(SYMBOLIC_SHAPES)
        _become_real(module)
        return getattr(module, name)(compared)

    return function


class _NeverRaised(Exception):  # noqa: N818
    """What is raised of symbols, of which there is none while SYMBOLIC_SHAPES is a stand-in."""


PARTS: dict[str, dict[str, Any]] = {
    COMPILER: {
        "utils": SimpleNamespace(get_optimize_ddp_mode=lambda: "ddp_optimizer"),
        "trace_rules": SimpleNamespace(clear_lru_cache=lambda: None),
        "disable": _keep,
        "graph_break": lambda: None,
    },
    SYMBOLIC_SHAPES: {
        "GuardOnDataDependentSymNode": _NeverRaised,
        "guard_or_false": _of_plain_sizes("guard_or_false"),
        "statically_known_true": _of_plain_sizes("statically_known_true"),
    },
    "dill": {"extend": lambda use_dill: None},
}
"""What of them is used where nothing is compiled, nor pickled with dill, and no size is a symbol."""

ASK_FOR_FAKES = {"torch._guards", "torch._tensor"}
"""What asks as a tensor is saved or loaded whether anything is fake: nothing is while torch._subclasses stands in."""


class _NoFake:
    """What nothing is an instance of."""


def _no_fake(module: ModuleType, name: str) -> Any:
    if name == "fake_tensor":
        return importlib.import_module(f"{module.__name__}.{name}")
    return _NoFake if name in ("FakeTensor", "FakeTensorMode") else _Name(module, name)


class _StandIn(ModuleType):
    """An empty module, which becomes the real one, in place, as soon as something is taken from it."""

    def __init__(self, name: str, loader: Any) -> None:
        super().__init__(name)
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        importing = _torch_is_being_imported()
        if name.startswith("__") and (importing or name != "__all__"):  # what is asked of every module
            raise AttributeError(name)
        if importing:
            return _Name(self, name)
        if self.__name__.startswith("torch._subclasses") and sys._getframe(1).f_globals["__name__"] in ASK_FOR_FAKES:
            return _no_fake(self, name)
        _become_real(self)
        return getattr(self, name)


class _Name:
    """What torch took from a stand-in by name while it was imported itself."""

    def __init__(self, module: ModuleType, name: str) -> None:
        self._module = module
        self._name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._module, self._name)(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if _torch_is_being_imported():
            raise AttributeError(name)
        return getattr(getattr(self._module, self._name), name)

    def __iter__(self) -> Iterator[Any]:
        return iter(() if _torch_is_being_imported() else getattr(self._module, self._name))  # for a docstring's list

    def __or__(self, other: object) -> Any:  # in an annotation
        return Any


def _torch_is_being_imported() -> bool:
    return "torch" in sys.modules and bool(vars(sys.modules["torch"].__spec__)["_initializing"])


def _become_real(module: ModuleType) -> None:
    if module.__name__.startswith("torch."):
        _import_circles()
    if (parent := _parent(module.__name__)) is not None:
        _become_real(parent)
    if isinstance(module, _StandIn):  # still: one of those may have taken something from it
        loader = module.__dict__.pop("_loader")
        for part in PARTS.get(module.__name__, ()):
            del module.__dict__[part]
        spec: Any = module.__spec__
        module.__loader__ = spec.loader = loader
        module.__class__ = ModuleType  # type: ignore[assignment]
        loader.exec_module(module)


def _import_circles() -> None:
    names = IN_CIRCLES.copy()
    IN_CIRCLES.clear()
    for name in names:
        _become_real(importlib.import_module(name))


def _parent(name: str) -> ModuleType | None:
    return sys.modules.get(name.rpartition(".")[0])


class _Loader:
    """Makes a stand-in, which may later be loaded by the real loader."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name, self._real)

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update(PARTS.get(module.__name__, {}))
        if module.__name__ == META_FUNCTIONS:
            importlib.import_module("torch._subclasses")  # torch's own code takes it from torch, without importing it
            _give_generator_its_metaclass()


def _give_generator_its_metaclass() -> None:
    """Do what torch._prims does from torch 2.13 on, without which there is then no torch.Generator."""
    torch = sys.modules["torch"]
    if not hasattr(torch._C, "_set_generator_metaclass"):
        return
    try:
        metaclass = importlib.import_module("torch._custom_class_base").CustomClassBaseMeta
    except ModuleNotFoundError:  # before torch 2.15
        metaclass = importlib.import_module("torch._opaque_base").OpaqueBaseMeta
    torch._C._set_generator_metaclass(metaclass)


class _Imported:
    """Loads what has been imported already."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._spec = module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


class _Finder:
    """Finds a stand-in where one of those, or a part of one, would be imported for the first time."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name in PARTS_OF_CIRCLES and IN_CIRCLES and not _torch_is_being_imported():
            _import_circles()
            if (module := sys.modules.get(name)) is not None:
                module.__spec__ = ModuleSpec(name, _Imported(module))  # type: ignore[arg-type]  # it is all of a loader
                return module.__spec__  # where a module is there after it was looked for, importlib takes its own
        if name not in UNUSED and not isinstance(_parent(name), _StandIn):
            return None
        if (spec := PathFinder.find_spec(name, path)) is not None:
            spec.loader = _Loader(spec.loader)  # type: ignore[assignment]  # it is all of a loader
        return spec


sys.meta_path.insert(0, _Finder())
