"""The reference of the protocol and of events, from proto/ and its comments."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Final, NamedTuple

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    MethodDescriptorProto,
    ServiceDescriptorProto,
)

from edriver.text.event_lines import event_line
from edriver.v1 import status_pb2
from edriver.wire.conversion import timestamp
from scripts.docs_site.markdown import cell, table

ROOT: Final = Path(__file__).parents[2]

FILES: Final = {
    "status.proto": "Looking at a run",
    "resources.proto": "What hosts and workers use",
    "control.proto": "Steering a run",
    "agent.proto": "Between driver and agents",
    "notification.proto": "Between agent and workers",
    "checkpoints.proto": "Checkpoints in memory",
    "rounds.proto": "What they share",
    "rendezvous.proto": "A rendezvous for torchrun",
    "cause.proto": "Why something happened",
    "pace.proto": "Who holds a round up",
    "stacks.proto": "Where a worker's threads stand",
}
"""The files and what each is for, in the order in which they are shown."""

_MESSAGES, _ENUMS, _SERVICES, _MEMBERS = 4, 5, 6, 2
"""Numbers of fields in descriptor.proto, of which the paths of comments are made."""

_Commented = DescriptorProto | EnumDescriptorProto | ServiceDescriptorProto


class Described(NamedTuple):
    """A file of proto/ and the comments in it, by their paths."""

    file: FileDescriptorProto
    comments: Mapping[tuple[int, ...], str]

    def comment(self, *path: int) -> str:
        """The comment above what a path leads to, on one line."""
        return cell(self.comments.get(path, ""))


@cache
def described() -> dict[str, Described]:
    """The files by name, compiled with their comments."""
    from grpc_tools import protoc  # what compiles edriver/v1, too

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "set")
        names = [f"edriver/v1/{name}" for name in FILES]
        shipped = resources.files("grpc_tools") / "_proto"  # Timestamp and Duration
        flags = [f"-I{ROOT / 'proto'}", f"-I{shipped}", "--include_source_info", f"--descriptor_set_out={out}"]
        if protoc.main(["protoc", *flags, *names]) != 0:
            raise RuntimeError("protoc cannot compile proto/edriver/v1")
        files = FileDescriptorSet.FromString(out.read_bytes()).file
    return {
        Path(file.name).name: Described(
            file, {tuple(place.path): place.leading_comments for place in file.source_code_info.location}
        )
        for file in files
    }


def page() -> str:
    """All services, messages and enums."""
    return "\n".join(line for name, title in FILES.items() for line in _file(described()[name], name, title))


def events() -> str:
    """The kinds of events, and what each of them carries."""
    found = described()["status.proto"]
    by_name = {message.name: number for number, message in enumerate(found.file.message_type)}
    event = found.file.message_type[by_name["Event"]]
    lines = [found.comment(_MESSAGES, by_name["Event"]), ""]
    for oneof in (False, True):
        rows = [
            (f"`{field.name}`", _type(field), found.comment(_MESSAGES, by_name["Event"], _MEMBERS, number))
            for number, field in enumerate(event.field)
            if field.HasField("oneof_index") is oneof
        ]
        lines.append("Exactly one of these says what kind of event it is:\n" if oneof else "Every event has:\n")
        lines.append(table(("field", "type", "meaning"), rows))
    kinds = [field.type_name.rpartition(".")[2] for field in event.field if field.HasField("oneof_index")]
    for kind in kinds:
        place, number, message = _found(kind)
        lines += [f"### {kind}\n", *_message(place, number, message)]
    return "\n".join(lines)


def _found(name: str) -> tuple[Described, int, DescriptorProto]:
    """A message, with the file that it is in and its number there."""
    return next(
        (file, number, message)
        for file in described().values()
        for number, message in enumerate(file.file.message_type)
        if message.name == name
    )


def event_line_example() -> str:
    """A line of the event log, as the driver writes it."""
    worker = status_pb2.WorkerStatus(
        worker_id=3,
        host="b",
        slot=1,
        state=status_pb2.WORKER_STATE_TRAINING,
        rank=2,
        pid=4711,
        start_time=timestamp(1735689590.0),
    )
    event = status_pb2.Event(seq=12, time=timestamp(1735689600.25), text="worker 3 (b:1) is ready", worker=worker)
    return f"```json\n{event_line(event)}```"


def _file(found: Described, name: str, title: str) -> Iterator[str]:
    yield f"## {title}\n\n[`{name}`](../../proto/edriver/v1/{name})\n"
    for number, service in enumerate(found.file.service):
        yield f"### {service.name}\n\n{found.comment(_SERVICES, number)}\n"
        rows = [
            (f"`{method.name}`", _signature(method), found.comment(_SERVICES, number, _MEMBERS, place))
            for place, method in enumerate(service.method)
        ]
        yield table(("method", "request and answer", "contract"), rows)
    for number, message in enumerate(found.file.message_type):
        yield f"### {message.name}\n"
        yield from _message(found, number, message)
    for number, enum in enumerate(found.file.enum_type):
        yield f"### {enum.name}\n\n{found.comment(_ENUMS, number)}\n"
        values = [
            (f"`{value.name}`", str(value.number), found.comment(_ENUMS, number, _MEMBERS, place))
            for place, value in enumerate(enum.value)
        ]
        yield table(("value", "number", "meaning"), values)


def _message(found: Described, number: int, message: DescriptorProto) -> Iterator[str]:
    yield f"{found.comment(_MESSAGES, number)}\n"
    maps = {each.name: each.field for each in message.nested_type if each.options.map_entry}
    rows = [
        (
            f"`{field.name}`",
            _type(field, maps),
            str(field.number),
            found.comment(_MESSAGES, number, _MEMBERS, place),
        )
        for place, field in enumerate(message.field)
    ]
    if rows:
        yield table(("field", "type", "number", "meaning"), rows)


def _signature(method: MethodDescriptorProto) -> str:
    request, answer = _link(method.input_type), _link(method.output_type)
    return f"{'stream of ' * method.client_streaming}{request} → {'stream of ' * method.server_streaming}{answer}"


def _type(field: FieldDescriptorProto, maps: Mapping[str, Sequence[FieldDescriptorProto]] | None = None) -> str:
    entry = (maps or {}).get(field.type_name.rpartition(".")[2])
    if entry:
        return f"map of {_type(entry[0])} to {_type(entry[1])}"
    name = _link(field.type_name) if field.type_name else FieldDescriptorProto.Type.Name(field.type)[5:].lower()
    repeated = field.label == FieldDescriptorProto.LABEL_REPEATED
    return f"{'repeated ' * repeated}{'optional ' * field.proto3_optional}{name}"


def _link(type_name: str) -> str:
    short = type_name.rpartition(".")[2]
    if type_name.startswith(".google.protobuf."):
        return f"[{short}](https://protobuf.dev/reference/protobuf/google.protobuf/#{short.lower()})"
    return f"[{short}](proto.md#{short.lower()})"
