"""Every message from outside is checked as a whole before anything in it is used; the limits are those of limits.py.

A field that has no entry in the table below has the limit of its kind, so that a new field is never without one.

INVALID_ARGUMENT names the field. Three things are cut to size instead, for a training script can make them as large as
it likes and its agent must not be lost by that: free texts (tracebacks, stacks, last lines), what a script reports, and
what it imports.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, MutableMapping, MutableSequence, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from edriver.model.limits import (
    MAX_AMOUNT,
    MAX_BATCH_LINES,
    MAX_HOST_NAME_LENGTH,
    MAX_HOST_SLOTS,
    MAX_LINE_BYTES,
    MAX_LIST_ITEMS,
    MAX_MODULES,
    MAX_NAME_LENGTH,
    MAX_RENDEZVOUS_NODES,
    MAX_REPORTED_NAMES,
    MAX_SECRET_BYTES,
    MAX_SHARD_RANGES,
    MAX_STORE_VALUE_BYTES,
    MAX_TEXT_LENGTH,
    MAX_TOTAL_SLOTS,
    MAX_VARIABLES,
    OutOfBoundsError,
    is_module_name,
    is_reported_name,
)
from edriver.wire.conversion import LAST_SECOND, NANOSECONDS

if TYPE_CHECKING:
    from edriver.v1 import agent_pb2

_OMISSION_MARK: Final = "\n[...]\n"

Rule: TypeAlias = Callable[[Message, FieldDescriptor, Any], None]


def check(message: Message) -> None:
    """Check a message and all that is in it. Free texts that are too long are cut in place, and so is
    what a script reports or imports; nothing else is changed.

    Raises:
        OutOfBoundsError: a field is out of bounds; the sentence names it.
    """
    for field, value in message.ListFields():
        rule = _rules.get(field, _unknown)
        if rule is not None:
            rule(message, field, value)


def _word(limit: int) -> Rule:
    """A text of one line."""

    def rule(_message: Message, field: FieldDescriptor, value: str) -> None:
        for word in value if field.is_repeated else (value,):
            _check_word(word, field, limit)

    return rule


def _check_word(word: str, field: FieldDescriptor, limit: int) -> None:
    if len(word) > limit:
        raise OutOfBoundsError(f"{_name(field)} has {len(word)} characters: at most {limit} are allowed")
    if not word.isprintable():
        raise OutOfBoundsError(f"{_name(field)} has a control character in it: {word[:100]!a}")


def _text(message: Message, field: FieldDescriptor, value: str) -> None:
    """A free text: of one that is too long the beginning and the end are kept."""
    if len(value) > MAX_TEXT_LENGTH:
        half = (MAX_TEXT_LENGTH - len(_OMISSION_MARK)) // 2
        setattr(message, field.name, value[:half] + _OMISSION_MARK + value[-half:])


def _data(limit: int) -> Rule:
    def rule(_message: Message, field: FieldDescriptor, value: bytes) -> None:
        if len(value) > limit:
            raise OutOfBoundsError(f"{_name(field)} has {len(value)} bytes: at most {limit} are allowed")

    return rule


def _number(most: int) -> Rule:
    def rule(_message: Message, field: FieldDescriptor, value: int) -> None:
        if not 0 <= value <= most:
            raise OutOfBoundsError(f"{_name(field)} is {value}: at most {most} is allowed")

    return rule


def _amount(_message: Message, field: FieldDescriptor, value: float) -> None:
    """How much of something is used."""
    if not 0 <= value <= MAX_AMOUNT:
        raise OutOfBoundsError(f"{_name(field)} is {value}: it must be between 0 and {MAX_AMOUNT}")


def _used(_message: Message, _field: FieldDescriptor, value: Message) -> None:
    """What a host or a worker uses, all at once: in a large run hundreds of these come in a second."""
    for field, amount in value.ListFields():
        if type(amount) not in (float, int):
            if (rule := _rules.get(field, _unknown)) is not None:
                rule(value, field, amount)
        elif not 0 <= amount <= MAX_AMOUNT:
            _amount(value, field, amount)


def _finite(_message: Message, field: FieldDescriptor, value: float) -> None:
    if not math.isfinite(value):
        raise OutOfBoundsError(f"{_name(field)} is {value}, which is not a number")


def _workers(_message: Message, field: FieldDescriptor, value: Sequence[agent_pb2.WorkerHeartbeat]) -> None:
    """Check the progress of workers. It comes once a second from each, so only what is not a number is checked."""
    _check_count(field, value, MAX_HOST_SLOTS)
    for one in value:
        _keep_reported(one.progress.reported)
        if one.HasField("usage"):
            _used(one, field, one.usage)


def _lines(_message: Message, field: FieldDescriptor, value: Sequence[agent_pb2.OutputLine]) -> None:
    """Lines of output, of which there may be very many: the same."""
    _check_count(field, value, MAX_BATCH_LINES)
    longest = max(len(line.text) for line in value)
    if longest > MAX_LINE_BYTES:
        raise OutOfBoundsError(f"OutputLine.text has {longest} bytes: at most {MAX_LINE_BYTES} are allowed")


def _keep_reported(value: MutableMapping[str, float]) -> None:
    """What a script reports; the values are its own affair, an infinite loss is one.

    `state.report` refuses values out of bounds. If some arrive nevertheless, they are dropped, and the rest is used.
    """
    for number, name in enumerate(list(value)):
        if number >= MAX_REPORTED_NAMES or not is_reported_name(name):
            del value[name]


def _module_names(_message: Message, _field: FieldDescriptor, value: MutableSequence[str]) -> None:
    """What a script has imported: names that no module can have are dropped, and those beyond the limit."""
    value[:] = [name for name in value if is_module_name(name)][:MAX_MODULES]


def _variables(_message: Message, _field: FieldDescriptor, value: MutableMapping[str, str]) -> None:
    """The environment in which it was imported, a part of which is the user's: the same."""
    for number, (name, text) in enumerate(list(value.items())):
        fits = max(len(name), len(text)) <= MAX_NAME_LENGTH and f"{name}{text}".isprintable()
        if number >= MAX_VARIABLES or not fits:
            del value[name]


def _messages(most: int) -> Rule:
    """A list of messages that may be longer than others."""

    def rule(message: Message, field: FieldDescriptor, value: Sequence[Message]) -> None:
        _check_count(field, value, most)
        _within(message, field, value)

    return rule


def _time(_message: Message, field: FieldDescriptor, value: Timestamp | Duration) -> None:
    """A date or a span that protobuf defines; others cannot be written as JSON."""
    if 0 <= value.seconds <= LAST_SECOND and 0 <= value.nanos < NANOSECONDS:
        return  # usual ones: when thousands of workers report at once, each brings ten
    try:
        value.ToJsonString()
    except ValueError:
        raise OutOfBoundsError(f"{_name(field)} is out of range: {value.seconds} s and {value.nanos} ns") from None


def _whole(_message: Message, _field: FieldDescriptor, value: Message) -> None:
    """A message in a message."""
    check(value)


def _within(_message: Message, field: FieldDescriptor, value: Any) -> None:
    """Messages in messages."""
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        for key in value:
            _check_word(str(key), field, MAX_NAME_LENGTH)
        return
    for one in value:
        check(one)


def _name(field: FieldDescriptor) -> str:
    """A field's name without its package: Hello.slots."""
    return ".".join(field.full_name.split(".")[-2:])


def _check_count(field: FieldDescriptor, value: Any, most: int) -> None:
    if len(value) > most:
        raise OutOfBoundsError(f"{_name(field)} has {len(value)} items: at most {most} are allowed")


_RULES_BY_TYPE: Final[Mapping[int, Rule]] = {
    FieldDescriptor.TYPE_STRING: _word(MAX_NAME_LENGTH),
    FieldDescriptor.TYPE_BYTES: _data(MAX_NAME_LENGTH),
    FieldDescriptor.TYPE_DOUBLE: _finite,
    FieldDescriptor.TYPE_MESSAGE: _within,
}
"""By the type of a field's values; every value of the other types is taken."""

_RULES_BY_FIELD: Final[Mapping[str, Rule | None]] = {
    "Hello.host": _word(MAX_HOST_NAME_LENGTH),
    "Hello.slots": _number(MAX_HOST_SLOTS),
    "Hello.secret": _data(MAX_SECRET_BYTES),
    "ForwardOutputRequest.secret": _data(MAX_SECRET_BYTES),
    "ForwardOutputRequest.lines": _lines,
    "Heartbeat.workers": _workers,
    "WorkerExited.tail": _text,
    "WorkerExited.crash_stacks": _text,
    "RecordedError.traceback": _text,
    "WorkerFailed.traceback": _text,
    "CollectiveRaised.traceback": _text,
    "WorkerStalled.stacks": _text,
    "StacksTaken.stacks": _text,
    "Stacks.text": _text,
    "Standing.place": _text,
    "ScriptWarning.place": _text,
    "NotFinite.value": None,
    "WorkerWaiting.digest": _text,
    "FirstBoundaryPassed.digest": _text,
    "StateDigest.digest": _text,
    "WorkerWaiting.torn": _text,
    "WorkerWaiting.left_at": _text,
    "ModulesImported.names": _module_names,
    "ModulesImported.environment": _variables,
    "StoreAddress.port": _number(65535),
    "DrainRequest.host": _word(MAX_HOST_NAME_LENGTH),
    "PreviewDrainRequest.host": _word(MAX_HOST_NAME_LENGTH),
    "UndrainRequest.host": _word(MAX_HOST_NAME_LENGTH),
    "ResizeRequest.size": _number(MAX_TOTAL_SLOTS),
    "FetchRequest.ranges": _messages(MAX_SHARD_RANGES),
    "StateChange.nodes": _messages(MAX_RENDEZVOUS_NODES),
    "KeyValue.value": _data(MAX_STORE_VALUE_BYTES),
    "ChangeKeyRequest.append": _data(MAX_STORE_VALUE_BYTES),
    "ChangeKeyRequest.request_id": _data(MAX_SECRET_BYTES),
    "CompareSet.expected": _data(MAX_STORE_VALUE_BYTES),
    "CompareSet.desired": _data(MAX_STORE_VALUE_BYTES),
}
"""By the name of the field, without its package. None: each value of its type will do."""

_AMOUNT_MESSAGES: Final = frozenset({"WorkerUsage", "HostUsage", "GpuUsage"})
"""Messages whose numbers are all amounts."""

_NUMBER_TYPES: Final = frozenset(
    {FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_UINT64, FieldDescriptor.TYPE_UINT32}
)

_rules: dict[FieldDescriptor, Rule | None] = {}
"""Those that were used already."""


def _unknown(message: Message, field: FieldDescriptor, value: Any) -> None:
    """A field that comes for the first time."""
    rule = _rules[field] = _made_rule(field)
    if rule is not None:
        rule(message, field, value)


def _made_rule(field: FieldDescriptor) -> Rule | None:
    name = _name(field)
    if name in _RULES_BY_FIELD:
        return _RULES_BY_FIELD[name]
    rule = _RULES_BY_TYPE.get(field.type)
    if name.partition(".")[0] in _AMOUNT_MESSAGES and field.type in _NUMBER_TYPES and not field.is_repeated:
        return _amount
    if field.message_type in (Timestamp.DESCRIPTOR, Duration.DESCRIPTOR):
        rule = _time
    elif field.message_type is not None and field.message_type.name in _AMOUNT_MESSAGES and not field.is_repeated:
        rule = _used
    if not field.is_repeated:
        return _whole if rule is _within else rule

    def counted(message: Message, field: FieldDescriptor, value: Any) -> None:
        _check_count(field, value, MAX_LIST_ITEMS)
        if rule is not None:
            rule(message, field, value)

    return counted
