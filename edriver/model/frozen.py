"""How the model's types are made: frozen dataclasses with slots, whose methods are compiled when one is first used.

A driver, an agent or a worker imports all of the model and uses some of it. `dataclass` would compile the methods of
each of its hundred types at once, which takes a third of the time in which a driver starts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, dataclass_transform

_T = TypeVar("_T")

_METHODS: Final = (
    *("__init__", "__repr__", "__eq__", "__hash__", "__setattr__", "__delattr__"),
    *("__getstate__", "__setstate__"),  # for copies and pickles of what has slots
)
"""What `dataclass` adds to a frozen class with slots, unless it is there."""


@dataclass(frozen=True)
class _Frozen:
    pass


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(kind: type[_T]) -> type[_T]:
    """Do what `dataclass(frozen=True, slots=True)` does, whose base classes are no dataclasses.

    What the constructor takes is known to `inspect.signature` from the first use on.
    """
    namespace = {name: value for name, value in vars(kind).items() if name not in ("__dict__", "__weakref__")}
    made = dataclass(init=False, repr=False, eq=False, slots=True)(kind)
    made.__dataclass_params__ = _Frozen.__dataclass_params__  # type: ignore[attr-defined]
    for name in _METHODS:
        setattr(made, name, _compiled_later(name, made, namespace))
    return made


def _compiled_later(name: str, made: type, namespace: dict[str, object]) -> Callable[..., Any]:
    def method(self: object, *args: object, **kwargs: object) -> Any:
        # Of a new class: `dataclass` changes the one that it is given, and threads may get here together.
        whole: type = dataclass(frozen=True, slots=True)(type(made.__name__, made.__bases__, namespace))
        for each in _METHODS:
            setattr(made, each, vars(whole)[each])
        return getattr(self, name)(*args, **kwargs)

    method.__name__ = name
    return method
