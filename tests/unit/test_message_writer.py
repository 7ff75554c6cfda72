"""Messages are written as protobuf itself writes them."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from google.protobuf import json_format
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from edriver.text.message_writer import plain
from edriver.v1 import agent_pb2, resources_pb2, status_pb2
from edriver.wire.conversion import duration
from tests.fuzz.messages import Fuzzer

KINDS = (status_pb2.Event, status_pb2.Run, status_pb2.ProgressSample, resources_pb2.UsageSample)


def by_protobuf(message: Message) -> dict[str, Any]:
    return json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )


@pytest.mark.parametrize("kind", KINDS)
def test_any_message(kind: type[Message]) -> None:
    fuzzer, compared = Fuzzer(random.Random(3)), 0
    while compared < 100:
        message = fuzzer.message(kind)
        try:
            expected = json.dumps(by_protobuf(message))
        except json_format.SerializeToJsonError:  # a date or a span beyond those that protobuf defines
            with pytest.raises(ValueError, match="not valid"):
                plain(message)
            continue
        assert json.dumps(plain(message)) == expected
        compared += 1


@pytest.mark.parametrize(
    "message",
    [
        agent_pb2.StreamChoice(by_local_rank={3: agent_pb2.STREAMS_BOTH}),
        agent_pb2.Welcome(stall_limits={"step": duration(1.5), "init": duration(0.0)}),
        agent_pb2.Hello(secret=b"\x00\xff", host="ß\n"),
        agent_pb2.Heartbeat(),
    ],
)
def test_maps_and_bytes_and_nothing(message: Message) -> None:
    assert json.dumps(plain(message)) == json.dumps(by_protobuf(message))


@pytest.mark.parametrize("seconds", [-1, 0, 1_790_000_000, 253_402_300_799, 253_402_300_800, 315_576_000_001])
@pytest.mark.parametrize("nanos", [-1, 0, 1, 1000, 999_000, 1_000_000, 1_001_000, 120_000_000, 123_456_000, 10**9])
def test_dates_and_spans(seconds: int, nanos: int) -> None:
    for message in (
        status_pb2.Event(time=Timestamp(seconds=seconds, nanos=nanos)),
        agent_pb2.Shutdown(grace=Duration(seconds=seconds, nanos=nanos)),
    ):
        try:
            expected = by_protobuf(message)
        except json_format.SerializeToJsonError:
            with pytest.raises(ValueError, match="not valid"):
                plain(message)
        else:
            assert plain(message) == expected
