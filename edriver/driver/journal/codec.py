"""Model types as JSON and back: the form in which a journal holds events and snapshots.

Scalars are what they are in JSON, and a tuple is an array. All else is an object with one key, which names its type, as
Rust's serde does it ("externally tagged"), so that what is read needs no knowledge of where it stands:

    {"AgentLost": {"host": "a", "agent_id": 1, "fault": {"AgentFault": {"kind": {"AgentFaultKind": "ended"}, ...}}}}

There may be a message for each of thousands of workers. So those of a collection, if all are of one type, are one text,
with the lengths of its parts: `{"list": {"edriver.v1.Event": [[2, 3], "CAEIAQI="]}}`.

A type is known by its name, not by its module, and only types that the codec was given can be made: frozen or not,
dataclasses and named tuples of data, enumerations, and messages of edriver's own protocol. What is read is compared
with the annotations. Fields are written by name, so both a field that is not known any more and one that is missing are
no error: the former is ignored, the latter takes its default. Fields that the constructor fills (`init=False`) follow
from the others and are not written.

JSON, because the head of a journal is JSON already, `sqlite3` shows it, and no host needs another package for it.
Libraries that do the same were looked at: msgspec has no unions of dataclasses, and cattrs needs an annotation for each
value, which the state of a driver (state.py) does not have everywhere.
"""

from __future__ import annotations

import base64
import collections
import dataclasses
import enum
import itertools
import json
import types
import typing
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, Final, TypeAlias

from google.protobuf import descriptor_pool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

import edriver.v1

Json: TypeAlias = Any
"""What the module `json` reads and writes."""

to_json: Final = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
"""Data as text: `json.dumps` would make an encoder for each call. What a codec encodes has no circles."""

MESSAGES: Final = f"{edriver.v1.__name__}."
"""What the full names of messages begin with."""

SCALARS: Final = frozenset({type(None), bool, int, float, str})

_SEQUENCES: Final[Mapping[str, Callable[[Iterable[Any]], Any]]] = {
    "list": list,
    "set": set,
    "frozenset": frozenset,
    "deque": deque,
}
_MAPPINGS: Final[Mapping[str, Callable[[Iterable[Any]], Any]]] = {
    "dict": dict,
    "Counter": lambda pairs: Counter(dict(pairs)),
}

Check: TypeAlias = Callable[[object], bool]


class CodecError(ValueError):
    """Data that is not what this codec writes, or a value that it does not write. The message says what."""


class TypeSchema:
    """Describes how values of one type are written.

    Args:
        kind: a dataclass or a named tuple.

    Attributes:
        kind: as given.
        mutable: whether its values change, so that a second reference to one would become a separate value.
        names: the names of the constructor's fields.
    """

    def __init__(self, kind: type) -> None:
        self.kind = kind
        if dataclasses.is_dataclass(kind):
            self.mutable = not kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
            self.names = [field.name for field in dataclasses.fields(kind) if field.init]
        else:
            self.mutable = False
            self.names = list(kind._fields)  # type: ignore[attr-defined]

    @cached_property
    def fields(self) -> dict[str, Check]:
        """By the name of each field, whether a value belongs there."""
        hints = typing.get_type_hints(self.kind)
        return {name: check_of(hints[name]) for name in self.names}

    def make(self, found: dict[str, object]) -> Any:
        """A value with these fields; unknown ones are left out.

        Raises:
            CodecError: a field has a value of another type, or one is missing that has no default.
        """
        fields = {name: found[name] for name in self.fields if name in found}
        for name, value in fields.items():
            if not self.fields[name](value):
                raise CodecError(f"{self.kind.__name__}.{name} is {value!a:.100}")
        try:
            return self.kind(**fields)
        except (TypeError, ValueError) as error:
            raise CodecError(f"{self.kind.__name__}: {error}") from None


class Codec:
    """Writes and reads values of some types.

    Args:
        kinds: the types: dataclasses, named tuples, enumerations. Two of one name cannot be told apart: neither is
            known then.
    """

    def __init__(self, kinds: Iterable[type]) -> None:
        self._records: dict[str, TypeSchema] = {}
        self._enums: dict[str, type[enum.Enum]] = {}
        by_name = collections.defaultdict(set)
        for kind in kinds:
            by_name[kind.__name__].add(kind)
        for name, same in by_name.items():
            if len(same) > 1:
                continue
            (kind,) = same
            if issubclass(kind, enum.Enum):
                self._enums[name] = kind
            else:
                self._records[name] = TypeSchema(kind)
        self._known = {record.kind for record in self._records.values()} | set(self._enums.values())

    # ---- writing ---------------------------------------------------------------------------------------------

    def encode(self, value: object) -> Json:
        """A value as JSON.

        Raises:
            CodecError: it is of a type that this codec does not know.
        """
        kind = type(value)
        if kind in SCALARS:
            return value
        if isinstance(value, tuple) and kind is tuple:
            return [item if type(item) in SCALARS else self.encode(item) for item in value]
        if kind in self._known:
            if isinstance(value, enum.Enum):
                return {kind.__name__: value.value}
            return {kind.__name__: self._encode_fields(value, self._records[kind.__name__])}
        match value:
            case bytes():
                return {"bytes": _text(value)}
            case Message():
                return {value.DESCRIPTOR.full_name: _text(value.SerializeToString())}
            case list() | deque():
                return {kind.__name__: self._encode_items(value)}
            case set() | frozenset():
                return {kind.__name__: [self.encode(item) for item in _in_order(value)]}
            case Mapping() if kind.__name__ in _MAPPINGS:
                if are_messages(value):
                    return {kind.__name__: {"keys": [*map(self.encode, value)], "items": _packed(value.values())}}
                return {kind.__name__: [[self.encode(key), self.encode(item)] for key, item in value.items()]}
        return self._encode_other(value)

    def _encode_items(self, items: Collection[Any]) -> Json:
        return _packed(items) if are_messages(items) else [self.encode(item) for item in items]

    def _encode_fields(self, value: object, record: TypeSchema) -> Json:
        items = [(name, getattr(value, name)) for name in record.names]
        return {name: item if type(item) in SCALARS else self.encode(item) for name, item in items}

    def _encode_other(self, value: object) -> Json:
        raise CodecError(f"a {type(value).__qualname__} does not belong in a journal")

    # ---- reading ---------------------------------------------------------------------------------------------

    def decode(self, data: Json) -> Any:
        """Decode a value that `encode` has encoded.

        Raises:
            CodecError: it is not such a value.
        """
        if isinstance(data, list):
            return tuple([self.decode(item) for item in data])
        if not isinstance(data, dict):
            return data
        name, content = tagged(data)
        if (record := self._records.get(name)) is not None:
            fields = self._fields_of(name, content)
            return record.make({key: self.decode(item) for key, item in fields.items() if key in record.fields})
        try:
            if (kind := self._enums.get(name)) is not None:
                return kind(content)
            if (sequence := _SEQUENCES.get(name)) is not None:
                return sequence(self._decode_items(content))
            if (mapping := _MAPPINGS.get(name)) is not None:
                return mapping(self._decode_pairs(content))
            if name == "bytes":
                return base64.b64decode(content, validate=True)
            if name.startswith(MESSAGES):
                return _message(name).FromString(base64.b64decode(content, validate=True))
        except CodecError:
            raise
        except Exception as error:  # noqa: BLE001  what is damaged raises nearly everything
            raise CodecError(f"{name[:100]}: {str(error) or type(error).__name__:.200}") from None
        return self._decode_other(name, content)

    def _decode_items(self, content: Json) -> list[Any]:
        if isinstance(content, dict):
            return _unpacked(content)
        return [self.decode(item) for item in _array(content)]

    def _decode_pairs(self, content: Json) -> list[tuple[Any, Any]]:
        if isinstance(content, dict):
            keys = [self.decode(key) for key in _array(content.get("keys"))]
            return list(zip(keys, _unpacked(content.get("items")), strict=True))
        return [(self.decode(key), self.decode(item)) for key, item in _array(content)]

    def _fields_of(self, name: str, content: Json) -> dict[str, Json]:
        if not isinstance(content, dict):
            raise CodecError(f"{name} has no fields")
        return content

    def _decode_other(self, name: str, _content: Json) -> Any:
        raise CodecError(f"{name[:100]!a} is not a type that belongs here")


def tagged(data: Json) -> tuple[str, Json]:
    """Split an encoded value into the name of its type and its contents.

    Raises:
        CodecError: it is not an encoded value.
    """
    if not isinstance(data, dict) or len(data) != 1:
        raise CodecError(f"{data!a:.100} is not an object of one type")
    ((name, content),) = data.items()
    return name, content


def _in_order(items: Collection[Any]) -> Collection[Any]:
    """The same, in an order that does not depend on the process, where they have one."""
    try:
        return sorted(items)
    except TypeError:
        return items


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _array(content: Json) -> list[Json]:
    if not isinstance(content, list):
        raise CodecError("its items are not an array")
    return content


def are_messages(items: Collection[Any]) -> bool:
    """Whether these, or the values of this mapping, are messages of one type."""
    kinds = set(map(type, items.values() if isinstance(items, Mapping) else items))
    return len(kinds) == 1 and issubclass(kinds.pop(), Message)


def _packed(messages: Collection[Any]) -> Json:
    """Messages of one type as the lengths of their bytes, and these."""
    parts = [message.SerializeToString() for message in messages]
    name = next(iter(messages)).DESCRIPTOR.full_name
    return {name: [[*map(len, parts)], _text(b"".join(parts))]}


def _unpacked(content: Json) -> list[Message]:
    name, (lengths, text) = tagged(content)
    if not name.startswith(MESSAGES):
        raise CodecError(f"{name[:100]!a} is no message")
    kind, data = _message(name), base64.b64decode(text, validate=True)
    ends = [*itertools.accumulate(_array(lengths))]
    if min(lengths, default=0) < 0 or (ends[-1] if ends else 0) != len(data):
        raise CodecError(f"{name} has other lengths")
    return [kind.FromString(data[end - length : end]) for end, length in zip(ends, lengths, strict=True)]


def _message(name: str) -> type[Message]:
    return GetMessageClass(descriptor_pool.Default().FindMessageTypeByName(name))


def kinds_in(hint: object) -> Iterator[type]:
    """The dataclasses, named tuples and enumerations that values of a type consist of.

    Args:
        hint: an annotation.
    """
    found: set[type] = set()
    left = [hint]
    while left:
        each = left.pop()
        left += typing.get_args(each)
        if isinstance(each, type) and is_data(each) and each not in found:
            found.add(each)
            yield each
            if not issubclass(each, enum.Enum):
                left += typing.get_type_hints(each).values()


def is_data(kind: type) -> bool:
    """Whether it is a named tuple, an enumeration, or a dataclass whose values are compared, or never change."""
    if dataclasses.is_dataclass(kind):
        parameters = kind.__dataclass_params__  # type: ignore[attr-defined]
        return bool(parameters.eq or parameters.frozen)
    return issubclass(kind, enum.Enum) or hasattr(kind, "_fields")


def check_of(hint: Any) -> Check:
    """Whether a value is of the type that an annotation names."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any or isinstance(hint, typing.TypeVar):
        return lambda _value: True
    if origin in (typing.Union, types.UnionType):
        checks = [check_of(each) for each in args]
        return lambda value: any(check(value) for check in checks)
    if hint is None:
        hint = type(None)
    if hint is float:
        return lambda value: type(value) in (float, int)
    if hint in SCALARS:
        return lambda value: type(value) is hint
    if origin is None:
        return lambda value: isinstance(value, hint)
    if origin is tuple and not (len(args) == 2 and args[1] is Ellipsis):
        parts = [check_of(each) for each in args]
        return lambda value: (
            isinstance(value, tuple)
            and len(value) == len(parts)
            and all(check(item) for check, item in zip(parts, value, strict=True))
        )
    if issubclass(origin, Mapping):
        keys, items = check_of(args[0]), check_of(args[1] if len(args) > 1 else int)  # of a Counter
        return lambda value: isinstance(value, origin) and all(keys(key) and items(item) for key, item in value.items())
    item = check_of(args[0])
    return lambda value: isinstance(value, origin) and all(item(each) for each in value)
