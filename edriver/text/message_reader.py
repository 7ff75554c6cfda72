"""Reads messages that edriver.text.message_writer has written, from what a JSON parser made of them.

protobuf's own json_format finds out again for each field of each message how it is written. Here that is done once for
a field, which is several times as fast: a week of 1,000 workers has 10,000 samples, and 200,000 members of rounds.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache, partial
from typing import Any, Final, TypeAlias, TypeVar

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

Kind = TypeVar("Kind", bound=Message)
Span = TypeVar("Span", Timestamp, Duration)
Convert: TypeAlias = Callable[[Any], Any]
"""Makes of a parsed value what a message's constructor takes."""

_EPOCH: Final = datetime.fromtimestamp(0, UTC)
_DAY: Final = 86400
_MOST_DIGITS: Final = len("2026-03-01T12:00:00.123456Z")
"""Characters of the longest point in time that `datetime` can hold: a longer one has nanoseconds."""


def message_of(kind: type[Kind], parsed: object) -> Kind:
    """The message that edriver.text.message_writer.plain has written so; fields that are not known are passed over.

    Raises:
        ValueError, OverflowError: it has not.
    """
    try:
        return kind(**_arguments(_conversions(kind.DESCRIPTOR), parsed))
    except (AttributeError, TypeError) as error:
        raise ValueError(f"it is not a valid {kind.DESCRIPTOR.name}: {error}") from None


def _arguments(conversions: dict[str, Convert | None], parsed: Any) -> dict[str, Any]:
    """What the constructor of a message takes: parts of it as dictionaries, too."""
    found = {}
    for name, value in parsed.items():
        if value is not None and name in conversions:
            convert = conversions[name]
            found[name] = value if convert is None else convert(value)
    return found


@cache
def _conversions(descriptor: Descriptor) -> dict[str, Convert | None]:
    """By field; None: its value is taken as it is."""
    return {field.name: _conversion(field) for field in descriptor.fields}


def _conversion(field: FieldDescriptor) -> Convert | None:
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        convert = _conversion_of_one(message.fields_by_name["value"])
        return convert and partial(_convert_values, convert)
    convert = _conversion_of_one(field)
    return partial(_convert_all, convert) if convert is not None and field.is_repeated else convert


def _convert_all(convert: Convert, values: Any) -> list[Any]:
    return [convert(value) for value in values]


def _convert_values(convert: Convert, values: Any) -> dict[Any, Any]:
    return {key: convert(value) for key, value in values.items()}


def _conversion_of_one(field: FieldDescriptor) -> Convert | None:
    """64-bit integers are strings, and so are values that are not numbers."""
    if field.message_type is not None:
        return _conversion_of_message(field.message_type)
    if field.enum_type is not None:
        return partial(_number_of, field.enum_type)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return b64decode
    if field.cpp_type in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        return float
    return None if field.cpp_type in _PLAIN_TYPES else int


_PLAIN_TYPES: Final = (FieldDescriptor.CPPTYPE_STRING, FieldDescriptor.CPPTYPE_BOOL)


def _conversion_of_message(descriptor: Descriptor) -> Convert:
    if descriptor is Timestamp.DESCRIPTOR:
        return _time
    if descriptor is Duration.DESCRIPTOR:
        return partial(_from_text, Duration)
    return lambda parsed: _arguments(_conversions(descriptor), parsed)  # looked up when called: messages may nest


def _time(value: str) -> Timestamp | dict[str, int]:
    if len(value) > _MOST_DIGITS:
        return _from_text(Timestamp, value)
    since = datetime.fromisoformat(value) - _EPOCH
    return {"seconds": since.days * _DAY + since.seconds, "nanos": since.microseconds * 1000}


def _from_text(kind: type[Span], value: str) -> Span:
    found = kind()
    found.FromJsonString(value)
    return found


def _number_of(kind: EnumDescriptor, value: Any) -> Any:
    """A name of a later release is as good as none."""
    if isinstance(value, str):
        return kind.values_by_name[value].number if value in kind.values_by_name else 0
    return value
