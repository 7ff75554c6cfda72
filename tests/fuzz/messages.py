"""Random messages: valid ones by their descriptors, mutated ones, and bytes that are none. All from one source."""

from __future__ import annotations

import random
from typing import Any, TypeVar

from google.protobuf import message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

T = TypeVar("T")

DEPTH = 4
LONGEST = 40

_INTEGERS = {
    FieldDescriptor.TYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.TYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.TYPE_SINT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_INT64: (-(2**63), 2**63 - 1),
}


class Fuzzer:
    """Draws the messages.

    Args:
        rng: everything follows from it; one of hypothesis' makes examples small.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self._rng.random() < probability

    def choice(self, *candidates: T) -> T:
        """One of these."""
        return self._rng.choice(candidates)

    def payload(self, kind: type[Message]) -> bytes:
        """Bytes to send where a message of this kind is expected: a third each valid, mutated, random."""
        draw = self._rng.random()
        if draw < 1 / 3:
            return self.message(kind).SerializeToString()
        if draw < 2 / 3:
            return self.mutated(self.message(kind).SerializeToString())
        return self._rng.randbytes(self._rng.randrange(LONGEST))

    def message(self, kind: type[Message], depth: int = DEPTH) -> Message:
        """A valid message with any of its fields set to anything; of a oneof each field is as likely as the others."""
        made = kind()
        chosen = {oneof.name: self.choice(*oneof.fields).name for oneof in made.DESCRIPTOR.oneofs}
        for field in made.DESCRIPTOR.fields:
            among = field.containing_oneof
            is_set = self.chance(0.5) if among is None or len(among.fields) == 1 else chosen[among.name] == field.name
            if is_set:
                self._fill(made, field, depth)
        return made

    def _fill(self, made: Message, field: Any, depth: int) -> None:
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            if depth:
                assert field.message_type is not None
                filled = self.message(message_factory.GetMessageClass(field.message_type), depth - 1)
                target: Any = getattr(made, field.name)
                if field.message_type.GetOptions().map_entry:
                    key, value = filled.key, filled.value  # type: ignore[attr-defined]  # a map's entries have these
                    if isinstance(value, Message):
                        target[key].CopyFrom(value)
                    else:
                        target[key] = value
                elif field.is_repeated:
                    target.append(filled)
                else:
                    target.CopyFrom(filled)
            return
        value = self._value(field)
        if field.is_repeated:
            getattr(made, field.name).extend([value] * self._rng.randrange(4))
        else:
            setattr(made, field.name, value)

    def _value(self, field: Any) -> Any:
        rng = self._rng
        if field.type in _INTEGERS:
            least, most = _INTEGERS[field.type]
            return rng.choice((0, 1, 2, 3, rng.randrange(least, most + 1), most))
        match field.type:
            case FieldDescriptor.TYPE_STRING:
                return rng.choice(
                    ("", "run", "a", "b", "/etc/passwd", "\0", "x" * 300, "x" * 3000, "\x1b[2J", "\N{SNOWMAN}")
                )
            case FieldDescriptor.TYPE_BYTES:
                return rng.randbytes(rng.randrange(LONGEST))
            case FieldDescriptor.TYPE_BOOL:
                return self.chance(0.5)
            case FieldDescriptor.TYPE_DOUBLE:
                return rng.choice((0.0, -1.0, 1e308, float("inf"), float("nan"), rng.random()))
            case FieldDescriptor.TYPE_ENUM:
                assert field.enum_type is not None
                return rng.choice([value.number for value in field.enum_type.values])
        raise AssertionError(f"a field of type {field.type} is new here: {field.full_name}")

    def mutated(self, data: bytes) -> bytes:
        """These bytes with one to four places changed, inserted or left out."""
        rng, changed = self._rng, bytearray(data)
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(changed) + 1)
            match rng.randrange(3):
                case 0 if at < len(changed):
                    changed[at] = rng.randrange(256)
                case 1:
                    changed[at:at] = rng.randbytes(rng.randint(1, 4))
                case _:
                    del changed[at : at + rng.randint(1, 4)]
        return bytes(changed)
