"""Types of the model are frozen dataclasses, though their methods are compiled when one is first used."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass, field

import pytest

from edriver.model.frozen import frozen


@frozen
class Pickled:
    name: str
    size: int = 1


@dataclass(frozen=True, slots=True)
class Plain:
    name: str
    size: int = 1
    parts: tuple[int, ...] = field(default_factory=lambda: (1, 2))
    total: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "total", sum(self.parts))


def fresh() -> type[Plain]:
    """The same type as Plain, no method of which has been used yet."""
    names = {"__annotations__", "__doc__", "__module__", "__post_init__", "__qualname__"}
    namespace = {name: value for name, value in vars(Plain).items() if name in names}
    defaults = {"size": 1, "parts": field(default_factory=lambda: (1, 2))}
    kept = {"total": field(init=False, repr=False, compare=False)}
    return frozen(type("Plain", (), {**namespace, **defaults, **kept}))


FIRST_USES: dict[str, Callable[[type[Plain]], object]] = {
    "a call": lambda kind: kind("a"),
    "a copy": lambda kind: copy.copy(kind("a", 2)),
    "a deep copy": lambda kind: copy.deepcopy(kind("a", 2)),
    "another value": lambda kind: dataclasses.replace(kind("a"), size=3),
    "text": lambda kind: repr(kind("a")),
    "a comparison": lambda kind: (kind("a") == kind("a", 1), kind("a") == kind("b"), kind("a").__eq__(Pickled("a"))),
    "a hash": lambda kind: hash(kind("a")),
    "its fields": lambda kind: [each.name for each in dataclasses.fields(kind)],
    "what follows": lambda kind: kind("a", parts=(3, 4)).total,
    "a pattern": lambda kind: kind.__match_args__,
    "as a dictionary": lambda kind: dataclasses.asdict(kind("a")),
}


@pytest.mark.parametrize("use", FIRST_USES.values(), ids=FIRST_USES)
def test_first_use_is_that_of_a_dataclass(use: Callable[[type[Plain]], object]) -> None:
    expected, found = use(Plain), use(fresh())
    assert repr(found) == repr(expected)
    assert isinstance(expected, Plain) or found == expected


@pytest.mark.parametrize(
    "change",
    [
        lambda value: setattr(value, "name", "b"),
        lambda value: delattr(value, "name"),
        lambda value: setattr(value, "size", 2),
    ],
)
def test_a_value_cannot_be_changed_before_another_use_or_after(change: Callable[[object], None]) -> None:
    kind = fresh()
    value = kind.__new__(kind)
    for _ in range(2):
        with pytest.raises(FrozenInstanceError):
            change(value)
    with pytest.raises(FrozenInstanceError):
        change(kind("a"))
    assert not hasattr(value, "__dict__")


@pytest.mark.parametrize(
    "alike",
    [
        lambda first, second: first == second,
        lambda first, second: hash(first) == hash(second),
        lambda first, second: repr(first) == repr(second),
    ],
    ids=["equal", "hash", "text"],
)
def test_values_that_no_constructor_has_made_are_alike(alike: Callable[[object, object], bool]) -> None:
    kind = fresh()
    values = [kind.__new__(kind), kind.__new__(kind)]
    for value in values:
        for name in ("name", "size", "parts"):
            object.__setattr__(value, name, ())
    assert alike(*values)


def test_a_value_is_pickled() -> None:
    assert pickle.loads(pickle.dumps(Pickled("a", 2))) == Pickled("a", 2)


def test_own_methods_stay() -> None:
    @frozen
    class Named:
        name: str

        def __repr__(self) -> str:
            return self.name

        def __hash__(self) -> int:
            return 7

    assert (repr(Named("a")), hash(Named("b")), Named("c") == Named("c")) == ("a", 7, True)


def test_a_frozen_dataclass_extends_it() -> None:
    @dataclass(frozen=True, slots=True)
    class Larger(Pickled):
        more: int = 0

    assert repr(Larger("a", more=1)).endswith("Larger(name='a', size=1, more=1)")


def test_arguments_that_do_not_fit_are_named() -> None:
    kind = fresh()
    for _ in range(2):
        with pytest.raises(TypeError, match="missing 1 required positional argument: 'name'"):
            kind()  # type: ignore[call-arg]


def test_methods_are_compiled_at_the_first_use() -> None:
    kind = fresh()
    before = inspect.signature(kind)
    kind("a")
    assert [*before.parameters] == ["args", "kwargs"]
    assert [*inspect.signature(kind).parameters] == ["name", "size", "parts"]
