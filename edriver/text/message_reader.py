"""Reads messages that edriver.text.event_lines has written, from what a JSON parser made of them.

protobuf's own json_format finds out anew for each field of each message how it is written. Here that is done once for a
field, which is several times as fast: a week of 1,000 workers has 10,000 samples, and 200,000 members of rounds.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache, partial
from typing import Any, Final, TypeVar

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

Kind = TypeVar("Kind", bound=Message)
Reader = Callable[[Any, Any], object]
"""Puts a parsed value into a message."""

_EPOCH: Final = datetime.fromtimestamp(0, UTC)
_DAY: Final = 86400
_MOST_DIGITS: Final = len("2026-03-01T12:00:00.123456Z")
"""Characters of the longest point in time that `datetime` can hold: a longer one has nanoseconds."""


def message_of(kind: type[Kind], parsed: object) -> Kind:
    """The message that edriver.text.event_lines.plain has written so; fields that are not known are passed over.

    Raises:
        ValueError, OverflowError: it has not.
    """
    message = kind()
    try:
        _fill(message, parsed)
    except (AttributeError, TypeError) as error:
        raise ValueError(f"it is no {message.DESCRIPTOR.name}: {error}") from None
    return message


def _fill(message: Any, parsed: Any) -> None:
    readers = _readers(message.DESCRIPTOR)
    for name, value in parsed.items():
        if value is not None and name in readers:
            readers[name](message, value)


@cache
def _readers(descriptor: Descriptor) -> dict[str, Reader]:
    return {field.name: _reader(field) for field in descriptor.fields}


def _reader(field: FieldDescriptor) -> Reader:
    message = field.message_type
    if message is None:
        return partial(_add_values if field.is_repeated else _set_value, field.name, _convert(field))
    if not message.GetOptions().map_entry:
        return partial(_add_messages if field.is_repeated else _set_message, field.name, _filler(message))
    value = message.fields_by_name["value"]
    if value.message_type is None:
        return partial(_put_values, field.name, _convert(value))
    return partial(_put_messages, field.name, _filler(value.message_type))


def _set_value(name: str, convert: Callable[[Any], Any], message: Any, value: Any) -> None:
    setattr(message, name, convert(value))


def _add_values(name: str, convert: Callable[[Any], Any], message: Any, values: Any) -> None:
    getattr(message, name).extend(map(convert, values))


def _put_values(name: str, convert: Callable[[Any], Any], message: Any, values: Any) -> None:
    into = getattr(message, name)
    for key, value in values.items():
        into[key] = convert(value)


def _set_message(name: str, fill: Reader, message: Any, value: Any) -> None:
    part = getattr(message, name)
    part.SetInParent()
    fill(part, value)


def _add_messages(name: str, fill: Reader, message: Any, values: Any) -> None:
    add = getattr(message, name).add
    for value in values:
        fill(add(), value)


def _put_messages(name: str, fill: Reader, message: Any, values: Any) -> None:
    into = getattr(message, name)
    for key, value in values.items():
        fill(into[key], value)


def _filler(descriptor: Descriptor) -> Reader:
    if descriptor is Timestamp.DESCRIPTOR:
        return _fill_time
    if descriptor is Duration.DESCRIPTOR:
        return Duration.FromJsonString
    return _fill


def _fill_time(message: Timestamp, value: str) -> None:
    if len(value) > _MOST_DIGITS:
        message.FromJsonString(value)
        return
    since = datetime.fromisoformat(value) - _EPOCH
    message.seconds, message.nanos = since.days * _DAY + since.seconds, since.microseconds * 1000


def _convert(field: FieldDescriptor) -> Callable[[Any], Any]:
    """What makes a field's value of a parsed one: 64-bit integers are texts, and so is what is no number."""
    if field.enum_type is not None:
        return partial(_number_of, field.enum_type)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return b64decode
    return {FieldDescriptor.CPPTYPE_DOUBLE: float, FieldDescriptor.CPPTYPE_FLOAT: float}.get(
        field.cpp_type, _as_it_is if field.cpp_type in _PLAIN_TYPES else int
    )


_PLAIN_TYPES: Final = (FieldDescriptor.CPPTYPE_STRING, FieldDescriptor.CPPTYPE_BOOL)


def _as_it_is(value: Any) -> Any:
    return value


def _number_of(kind: EnumDescriptor, value: Any) -> Any:
    """A name of a later release is as good as none."""
    if isinstance(value, str):
        return kind.values_by_name[value].number if value in kind.values_by_name else 0
    return value
