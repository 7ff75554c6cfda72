"""Every message from outside is checked as a whole before anything in it is used; the limits are those of limits.py.

A field that has no entry in the table below has the limit of its kind, so that a new field is never without one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from edriver.common.limits import (
    HOST_NAME,
    ITEMS,
    LINE,
    LINES,
    NAME,
    REPORTED,
    SECRET,
    SLOTS,
    TEXT,
    TOTAL_SLOTS,
    OutOfBoundsError,
    is_reported_name,
)

if TYPE_CHECKING:
    from edriver.v1 import agent_pb2

_CUT: Final = "\n[...]\n"

Rule: TypeAlias = Callable[[Message, FieldDescriptor, Any], None]


def check(message: Message) -> None:
    """Check a message and all that is in it. Free texts that are too long are cut in place, and so is
    what a script reports; nothing else is changed.

    Raises:
        OutOfBoundsError: a field is out of bounds; the sentence names it.
    """
    for field, value in message.ListFields():
        _rule_of(field)(message, field, value)


def _word(limit: int) -> Rule:
    """A text of one line."""

    def rule(_message: Message, field: FieldDescriptor, value: str) -> None:
        for word in value if field.is_repeated else (value,):
            _check_word(word, field, limit)

    return rule


def _check_word(word: str, field: FieldDescriptor, limit: int) -> None:
    if len(word) > limit:
        raise OutOfBoundsError(f"{_name(field)} has {len(word)} characters: {limit} are allowed")
    if not word.isprintable():
        raise OutOfBoundsError(f"{_name(field)} has a control character in it: {word[:100]!a}")


def _text(message: Message, field: FieldDescriptor, value: str) -> None:
    """A free text: of one that is too long the beginning and the end are kept."""
    if len(value) > TEXT:
        half = (TEXT - len(_CUT)) // 2
        setattr(message, field.name, value[:half] + _CUT + value[-half:])


def _data(limit: int) -> Rule:
    def rule(_message: Message, field: FieldDescriptor, value: bytes) -> None:
        if len(value) > limit:
            raise OutOfBoundsError(f"{_name(field)} has {len(value)} bytes: {limit} are allowed")

    return rule


def _number(most: int) -> Rule:
    def rule(_message: Message, field: FieldDescriptor, value: int) -> None:
        if not 0 <= value <= most:
            raise OutOfBoundsError(f"{_name(field)} is {value}: at most {most} is allowed")

    return rule


def _finite(_message: Message, field: FieldDescriptor, value: float) -> None:
    if not math.isfinite(value):
        raise OutOfBoundsError(f"{_name(field)} is {value}, which is no number")


def _standings(_message: Message, field: FieldDescriptor, value: Sequence[agent_pb2.WorkerStanding]) -> None:
    """Check the progress of workers. It comes once a second from each, so only what is not a number is checked."""
    _check_count(field, value, SLOTS)
    for one in value:
        _keep_reported(one.standing.reported)


def _lines(_message: Message, field: FieldDescriptor, value: Sequence[agent_pb2.OutputLine]) -> None:
    """Lines of output, of which there may be very many: the same."""
    _check_count(field, value, LINES)
    longest = max(len(line.text) for line in value)
    if longest > LINE:
        raise OutOfBoundsError(f"OutputLine.text has {longest} bytes: {LINE} are allowed")


def _keep_reported(value: MutableMapping[str, float]) -> None:
    """What a script reports; the values are its own affair, an infinite loss is one.

    `state.report` refuses what is out of bounds. What comes all the same is left out, and the rest is of use.
    """
    for number, name in enumerate(list(value)):
        if number >= REPORTED or not is_reported_name(name):
            del value[name]


def _any(_message: Message, _field: FieldDescriptor, _value: Any) -> None:
    """Each value of its type will do."""


def _within(_message: Message, field: FieldDescriptor, value: Any) -> None:
    """Messages in messages."""
    if not field.is_repeated:
        check(value)
        return
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        for key in value:
            _check_word(str(key), field, NAME)
        return
    for one in value:
        check(one)


def _name(field: FieldDescriptor) -> str:
    """A field's name without its package: Hello.slots."""
    return ".".join(field.full_name.split(".")[-2:])


def _check_count(field: FieldDescriptor, value: Any, most: int) -> None:
    if len(value) > most:
        raise OutOfBoundsError(f"{_name(field)} has {len(value)} items: {most} are allowed")


_KINDS: Final[Mapping[int, Rule]] = {
    FieldDescriptor.TYPE_STRING: _word(NAME),
    FieldDescriptor.TYPE_BYTES: _data(NAME),
    FieldDescriptor.TYPE_DOUBLE: _finite,
    FieldDescriptor.TYPE_MESSAGE: _within,
}
"""By the type of a field's values; every value of the other types is taken."""

_FIELDS: Final[Mapping[str, Rule]] = {
    "Hello.host": _word(HOST_NAME),
    "Hello.slots": _number(SLOTS),
    "Hello.secret": _data(SECRET),
    "OutputBatch.secret": _data(SECRET),
    "OutputBatch.lines": _lines,
    "Heartbeat.standings": _standings,
    "WorkerExited.tail": _text,
    "Failed.traceback": _text,
    "CollectiveRaised.traceback": _text,
    "Stalled.stacks": _text,
    "Waiting.digest": _text,
    "StoreAddress.port": _number(65535),
    "DrainRequest.host": _word(HOST_NAME),
    "UndrainRequest.host": _word(HOST_NAME),
    "ResizeRequest.size": _number(TOTAL_SLOTS),
}
"""By the name of the field, without its package."""

_rules: dict[str, Rule] = {}
"""Those that were used already, by the name of the field."""


def _rule_of(field: FieldDescriptor) -> Rule:
    rule = _rules.get(field.full_name)
    if rule is None:
        rule = _rules[field.full_name] = _made_rule(field)
    return rule


def _made_rule(field: FieldDescriptor) -> Rule:
    name = _name(field)
    if name in _FIELDS:
        return _FIELDS[name]
    rule = _KINDS.get(field.type, _any)
    if not field.is_repeated:
        return rule

    def counted(message: Message, field: FieldDescriptor, value: Any) -> None:
        _check_count(field, value, ITEMS)
        rule(message, field, value)

    return counted
