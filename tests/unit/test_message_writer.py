"""Messages are written as protobuf itself writes them."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from edriver.text.message_writer import plain
from edriver.v1 import agent_pb2, resources_pb2, status_pb2


def by_protobuf(message: Message) -> dict[str, Any]:
    return json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )


def drawn(draw: random.Random, field: Any) -> Any:
    """A value for a field."""
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_DOUBLE:
            return draw.choice([0.0, -1.5, 1e300, float("inf"), float("-inf"), float("nan")])
        case FieldDescriptor.CPPTYPE_BOOL:
            return draw.random() < 0.5
        case FieldDescriptor.CPPTYPE_ENUM:
            return draw.choice([*field.enum_type.values_by_number, 1999])
        case FieldDescriptor.CPPTYPE_STRING:
            text = draw.choice(["", "a", "ß\n", "\u2028", '"'])
            return text.encode() if field.type == FieldDescriptor.TYPE_BYTES else text
        case FieldDescriptor.CPPTYPE_INT32 | FieldDescriptor.CPPTYPE_INT64:
            return draw.choice([0, 7, -7])
        case _:
            return draw.choice([0, 7, 2**31])


def fill(draw: random.Random, message: Message, depth: int = 0) -> None:
    """Set some of the fields."""
    fields: Any = message.DESCRIPTOR.fields
    for field in fields:
        if draw.random() < 0.4:
            continue
        mine = getattr(message, field.name)
        is_message = field.message_type is not None
        if is_message and field.message_type.GetOptions().map_entry:
            value = field.message_type.fields_by_name["value"]
            for number in range(draw.randrange(3)):
                key = field.message_type.fields_by_name["key"]
                name = str(number) if key.cpp_type == FieldDescriptor.CPPTYPE_STRING else number
                if value.message_type is not None:
                    fill(draw, mine[name], depth + 1)
                else:
                    mine[name] = drawn(draw, value)
        elif is_message and depth > 4:
            continue
        elif field.is_repeated:
            for _ in range(draw.randrange(3)):
                if is_message:
                    fill(draw, mine.add(), depth + 1)
                else:
                    mine.append(drawn(draw, field))
        elif is_message and field.message_type.full_name.startswith("google.protobuf."):
            mine.FromMilliseconds(draw.randrange(10**12))
        elif is_message:
            mine.SetInParent()
            fill(draw, mine, depth + 1)
        else:
            setattr(message, field.name, drawn(draw, field))


@pytest.mark.parametrize(
    "kind", [status_pb2.Event, status_pb2.Run, status_pb2.ProgressSample, resources_pb2.UsageSample]
)
@pytest.mark.parametrize("seed", range(25))
def test_any_message(kind: type[Message], seed: int) -> None:
    message = kind()
    fill(random.Random(seed), message)
    assert json.dumps(plain(message)) == json.dumps(by_protobuf(message))


def test_keys_of_maps_and_bytes() -> None:
    messages = [
        agent_pb2.StreamChoice(by_local_rank={3: agent_pb2.STREAMS_BOTH}),
        agent_pb2.Hello(secret=b"\x00\xff", host="a"),
        agent_pb2.Heartbeat(),
    ]
    for message in messages:
        assert json.dumps(plain(message)) == json.dumps(by_protobuf(message))
