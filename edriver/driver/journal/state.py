"""The state of a driver as data, and back: what a snapshot holds.

The objects of a driver refer to one another, and to clocks and services. None of that is written. The next driver makes
its objects as the first one did, from the command line, and has each of them take over what it owns, as torch's
`load_state_dict` does. So each value is written once, by its owner, and what an object only refers to is not.

An owner is any object whose type is not data (`codec.is_data`); what is written of it are its attributes, without

* those that are callable, or configuration: the next driver brings its own;
* owners that were written already: a reference to a part that belongs to another;
* what follows from the rest: an owner with a tuple `STATE` names what alone is written, and its `derive()` makes what
  follows.

What is data, but changes (a worker's record), must be reached in one way only, or it would become two; that is an error
when it is written. An attribute that a snapshot lacks stays as the constructor has made it.

There may be thousands of workers, so the names of a type's fields are written once, under "types", and its values are
arrays in their order. For the same reason a state is written in pieces (`StateCodec.pieces`), between which the event
loop may do other things, as long as they leave alone what is still to be written.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import json
from collections import deque
from collections.abc import Collection, Generator, Iterable, Iterator
from itertools import islice
from typing import Any, Final

from edriver.driver.journal.codec import (
    MESSAGES,
    SCALARS,
    Codec,
    CodecError,
    Json,
    TypeSchema,
    are_messages,
    tagged,
    to_json,
)

TYPES: Final = "types"
"""Where a state has the names of the fields of each type."""

PIECE: Final = 100
"""Items of a collection that are written at once: they take a few milliseconds."""


class StateCodec(Codec):
    """Writes what owners have, and has other owners take it over.

    Args:
        kinds: the types of data: see Codec.
        configuration: types of values that each driver brings itself.
        strict: whether an attribute that the next owner does not have is an error; for tests.
    """

    def __init__(
        self,
        kinds: Iterable[type],
        configuration: tuple[type, ...] = (),
        *,
        strict: bool = False,
    ) -> None:
        super().__init__(kinds)
        self._configuration = configuration
        self._strict = strict
        self._reached: dict[int, object] = {}  # while a state is written; the objects, so that no id is used again
        self._types: dict[str, list[str]] = {}  # the fields of what is written, or read

    def save(self, **owners: object) -> dict[str, Json]:
        """What these have, by their names here, in this order: the first one that leads to a part owns it.

        Raises:
            CodecError: something cannot be written.
        """
        state: dict[str, Json] = json.loads("".join(self.pieces((), **owners)))
        return state

    def pieces(self, at_once: Collection[str] = (), **owners: object) -> Generator[str, None, None]:
        """The JSON of what `save` returns, piece by piece; one state at a time. It is that of one moment only if
        nothing changes an owner from its first piece to its last.

        Args:
            at_once: the owners of which each is one piece.
            owners: as for `save`.

        Raises:
            CodecError: something cannot be written.
        """
        self._reached.clear()
        self._types.clear()
        try:
            separator = "{"
            for name, owner in owners.items():
                yield f"{separator}{to_json(name)}:"
                yield from ["".join(self._pieces(owner))] if name in at_once else self._pieces(owner)
                separator = ","
            yield f"{separator}{to_json(TYPES)}:{to_json(self._types)}}}"
        finally:
            self._reached.clear()
            self._types.clear()

    def _pieces(self, value: Any) -> Iterator[str]:
        """The JSON of `encode(value)`: owners and records on the way to large collections are taken apart."""
        kind = type(value)
        if kind in self._known and not isinstance(value, enum.Enum):
            record = self._note(value, self._records[kind.__name__])
            yield f'{{"{kind.__name__}":['
            for place, name in enumerate(record.names):
                yield "," if place else ""
                yield from self._pieces(getattr(value, name))
            yield "]}"
        elif kind is tuple and len(value) > PIECE:
            yield from self._pieces_of(value, "[", "]")
        elif kind in (list, deque, dict) and len(value) > PIECE and not are_messages(value):
            items = value.items() if kind is dict else value
            yield from self._pieces_of(items, f'{{"{kind.__name__}":[', "]}")
        elif kind not in SCALARS and self._is_owner(value) and _has_attributes(value):
            separator = f'{{"{kind.__name__}":{{'
            for name, item in self._attributes(value):
                yield f"{separator}{to_json(name)}:"
                yield from self._pieces(item)
                separator = ","
            yield "}}" if separator == "," else f"{separator}}}}}"
        else:
            yield to_json(self.encode(value))

    def _pieces_of(self, items: Iterable[Any], begin: str, end: str) -> Iterator[str]:
        yield begin
        separator, left = "", iter(items)
        while some := [self.encode(item) for item in islice(left, PIECE)]:
            yield separator + to_json(some)[1:-1]
            separator = ","
        yield end

    def load(self, owner: object, state: Json, name: str) -> None:
        """Have an owner take over what another one of its kind has written. It was made as that one was.

        Args:
            owner: the owner.
            state: what `save` has written,
            name: and as what.

        Raises:
            CodecError: it is something else.
        """
        with self._reading(state):
            self._load(owner, state.get(name))

    def read(self, state: Json, name: str) -> Any:
        """A value that `save` has written under this name.

        Raises:
            CodecError: it is something else.
        """
        with self._reading(state):
            return self.decode(state.get(name))

    @contextlib.contextmanager
    def _reading(self, state: Json) -> Iterator[None]:
        types = state.get(TYPES) if isinstance(state, dict) else None
        if not isinstance(types, dict) or not all(_are_names(names) for names in types.values()):
            raise CodecError("it is not a state")
        self._types = types
        try:
            yield
        finally:
            self._types = {}

    def _load(self, owner: object, data: Json) -> None:
        kind, attributes = tagged(data)
        if kind != type(owner).__name__ or not isinstance(attributes, dict):
            raise CodecError(f"it is not the state of a {type(owner).__name__}")
        names = self._names(owner)
        if self._strict and (unknown := attributes.keys() - names):
            raise CodecError(f"{type(owner).__name__} no longer has {', '.join(sorted(unknown))}")
        for name in names:
            if name in attributes:
                self._set(owner, name, attributes[name])
        if (derive := getattr(owner, "derive", None)) is not None:
            derive()

    def _set(self, owner: object, name: str, data: Json) -> None:
        present = getattr(owner, name)
        if self._is_owner(present) and isinstance(data, dict) and [*data] == [type(present).__name__]:
            self._load(present, data)
            return
        value = self.decode(data)
        if not (present is None or value is None or _alike(present, value)):
            raise CodecError(f"{type(owner).__name__}.{name} is {value!a:.100}")
        if isinstance(present, deque):
            present.clear()  # it stays as long as it was made
            present.extend(value)
        else:
            setattr(owner, name, value)

    def _names(self, owner: object) -> list[str]:
        declared = getattr(type(owner), "STATE", None)
        if declared is not None:
            return list(declared)
        if dataclasses.is_dataclass(owner):
            return [field.name for field in dataclasses.fields(owner)]
        return list(vars(owner))

    def _is_owner(self, value: object) -> bool:
        kind = type(value)
        known = kind in self._known or kind.__module__ in ("builtins", "collections")
        return not known and not kind.__module__.startswith(MESSAGES)

    def _encode_fields(self, value: object, record: TypeSchema) -> Json:
        self._note(value, record)
        return [
            item if type(item) in SCALARS else self.encode(item)
            for item in [getattr(value, name) for name in record.names]
        ]

    def _note(self, value: object, record: TypeSchema) -> TypeSchema:
        if record.mutable:
            self._reach(value)
        self._types.setdefault(record.kind.__name__, record.names)
        return record

    def _fields_of(self, name: str, content: Json) -> dict[str, Json]:
        names = self._types.get(name, [])
        if not isinstance(content, list) or len(content) != len(names):
            raise CodecError(f"{name} has other fields")
        fields = dict(zip(names, content, strict=True))
        if self._strict and (unknown := fields.keys() - self._records[name].names):
            raise CodecError(f"{name} no longer has {', '.join(sorted(unknown))}")
        return fields

    def _attributes(self, owner: object) -> Iterator[tuple[str, object]]:
        """What is written of an owner, by name."""
        self._reach(owner)
        for name in self._names(owner):
            item = getattr(owner, name)
            if callable(item) or isinstance(item, self._configuration):
                continue
            if id(item) in self._reached and self._is_owner(item):
                continue
            yield name, item

    def _reach(self, value: object) -> None:
        if id(value) in self._reached:
            raise CodecError(f"a {type(value).__qualname__} is reached in two ways: one of them must be derived")
        self._reached[id(value)] = value


def _has_attributes(value: object) -> bool:
    return not callable(value) and (hasattr(value, "__dict__") or dataclasses.is_dataclass(value))


def _are_names(found: Json) -> bool:
    return isinstance(found, list) and all(isinstance(name, str) for name in found)


def _alike(present: object, value: object) -> bool:
    """Whether a value may take the place of another one."""
    numbers = (int, float)
    if isinstance(present, numbers) and isinstance(value, numbers):
        return isinstance(present, bool) == isinstance(value, bool)
    return isinstance(value, type(present)) or isinstance(present, type(value))
