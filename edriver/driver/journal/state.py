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
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable
from typing import Any

from edriver.driver.journal.codec import MESSAGES, TYPE, Codec, CodecError, Json


class StateCodec(Codec):
    """Writes what owners have, and has other owners take it over.

    Args:
        kinds: the types of data: see Codec.
        parts: owners that stand in collections, and are made anew by a constructor without arguments.
        configuration: types of values that each driver brings itself.
        strict: whether an attribute that the next owner does not have is an error; for tests.
    """

    def __init__(
        self,
        kinds: Iterable[type],
        parts: Iterable[type] = (),
        configuration: tuple[type, ...] = (),
        *,
        strict: bool = False,
    ) -> None:
        super().__init__(kinds)
        self._parts = {part.__name__: part for part in parts}
        self._configuration = configuration
        self._strict = strict
        self._reached: dict[int, object] = {}  # while a state is written; the objects, so that no id is used again

    def save(self, **owners: object) -> dict[str, Json]:
        """What these have, by their names here, in this order: the first one that leads to a part owns it.

        Raises:
            CodecError: something cannot be written.
        """
        try:
            return {name: self.encode(owner) for name, owner in owners.items()}
        finally:
            self._reached.clear()

    def load(self, owner: object, data: Json) -> None:
        """Have an owner take over what another one of its kind has written. It was made as that one was.

        Raises:
            CodecError: it is something else.
        """
        if not isinstance(data, dict) or data.get(TYPE) != type(owner).__name__:
            raise CodecError(f"it is no state of a {type(owner).__name__}")
        names = self._names(owner)
        if self._strict and (unknown := data.keys() - names - {TYPE}):
            raise CodecError(f"{type(owner).__name__} has no {', '.join(sorted(unknown))} any more")
        for name in names:
            if name in data:
                self._set(owner, name, data[name])
        if (derive := getattr(owner, "derive", None)) is not None:
            derive()

    def _set(self, owner: object, name: str, data: Json) -> None:
        present = getattr(owner, name)
        if self._is_owner(present) and isinstance(data, dict) and data.get(TYPE) == type(present).__name__:
            self.load(present, data)
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

    def _encode_record(self, value: object, record: Any) -> Json:
        if record.mutable:
            self._reach(value)
        return super()._encode_record(value, record)

    def _encode_other(self, value: object) -> Json:
        if callable(value) or (not hasattr(value, "__dict__") and not dataclasses.is_dataclass(value)):
            return super()._encode_other(value)
        self._reach(value)
        data: dict[str, Json] = {TYPE: type(value).__name__}
        for name in self._names(value):
            item = getattr(value, name)
            if callable(item) or isinstance(item, self._configuration):
                continue
            if id(item) in self._reached and self._is_owner(item):
                continue
            data[name] = self.encode(item)
        return data

    def _reach(self, value: object) -> None:
        if id(value) in self._reached:
            raise CodecError(f"a {type(value).__qualname__} is reached in two ways: one of them must be derived")
        self._reached[id(value)] = value

    def _decode_other(self, name: str, data: dict[str, Json]) -> Any:
        part = self._parts.get(name)
        if part is None:
            return super()._decode_other(name, data)
        made = part()
        self.load(made, data)
        return made


def _alike(present: object, value: object) -> bool:
    """Whether a value may take the place of another one."""
    numbers = (int, float)
    if isinstance(present, numbers) and isinstance(value, numbers):
        return isinstance(present, bool) == isinstance(value, bool)
    return isinstance(value, type(present)) or isinstance(present, type(value))
