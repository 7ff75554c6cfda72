"""What both clients do, without I/O: which calls a method makes, what their answers mean, and what an error does.

A method is a generator: it yields each call to make, receives its response, and returns the method's result.
`Client` makes the calls one after the other, `AsyncClient` awaits them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from edriver.client.addresses import Address
from edriver.client.errors import error_of
from edriver.v1 import control_pb2, control_pb2_grpc, resources_pb2, status_pb2, status_pb2_grpc
from edriver.wire.conversion import duration
from edriver.wire.driver_channel import open_channel

ANSWER_TIMEOUT: Final = 10.0
"""Seconds that a driver may take to answer."""


CLIENT_CHANNEL_OPTIONS: Final = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),  # thousands of workers
)


class ServiceCall(NamedTuple):
    """A call: the name of one of StatusService's or ControlService's methods, and the request."""

    method: str
    request: Message


Answer = TypeVar("Answer")
Channel = TypeVar("Channel")
Calls: TypeAlias = Generator[ServiceCall, Any, Answer]


class Core:
    """Calls the services of a run.

    Args:
        address: the address of the run's driver.
        timeout: the seconds that the driver may take to answer.
        channel: a channel to the driver, blocking or for asyncio.

    Attributes:
        run_id: the ID of the run.
        timeout: as given.
        methods: the callables that make a call, by the method's name.
    """

    def __init__(self, address: Address, timeout: float, channel: Any) -> None:
        self.run_id = address.run_id
        self.timeout = timeout
        services = (status_pb2_grpc.StatusServiceStub(channel), control_pb2_grpc.ControlServiceStub(channel))
        self.methods: dict[str, Callable[..., Any]] = {
            name: method for service in services for name, method in vars(service).items()
        }

    def begin(self, call: ServiceCall) -> Any:
        """Make a call that has one response; returns the response, or an awaitable of it."""
        return self.methods[call.method](call.request, timeout=self.timeout)

    @contextlib.contextmanager
    def errors_in_words(self) -> Iterator[None]:
        """Turn the failure of a call into a RunError."""
        try:
            yield
        except grpc.RpcError as error:
            raise error_of(self.run_id, error) from None


def channel_to(address: Address, insecure: Callable[..., Channel], secure: Callable[..., Channel]) -> Channel:
    """Return a channel to a run's driver, made by gRPC's functions for blocking channels or for asyncio."""
    return open_channel(address.target, address.authority, address.token, CLIENT_CHANNEL_OPTIONS, insecure, secure)


def snapshot() -> Calls[status_pb2.GetRunResponse]:
    """See Client.snapshot."""
    answer: status_pb2.GetRunResponse = yield ServiceCall("GetRun", status_pb2.GetRunRequest())
    return answer


def status() -> Calls[status_pb2.Run]:
    """See Client.status."""
    return (yield from snapshot()).run


def rounds(limit: int) -> Calls[list[status_pb2.Round]]:
    """See Client.rounds."""
    return list((yield ServiceCall("ListRounds", status_pb2.ListRoundsRequest(limit=limit))).rounds)


def progress_history() -> Calls[list[status_pb2.ProgressSample]]:
    """See Client.progress_history."""
    return list((yield ServiceCall("ListProgress", status_pb2.ListProgressRequest())).samples)


def usage_history() -> Calls[list[resources_pb2.UsageSample]]:
    """See Client.usage_history."""
    return list((yield ServiceCall("ListUsage", status_pb2.ListUsageRequest())).samples)


def events(since: int) -> Calls[list[status_pb2.Event]]:
    """See Client.events; the driver returns them in pages."""
    found: list[status_pb2.Event] = []
    while True:
        seq = found[-1].seq if found else since
        portion = (yield ServiceCall("ListEvents", status_pb2.ListEventsRequest(since=seq))).events
        if not portion:
            return found
        found += portion


def drain(host: str, slot: int | None, reason: str, within: float | None, requester: str) -> Calls[int]:
    """See Client.drain."""
    request = control_pb2.DrainRequest(
        host=host, slot=slot, reason=reason, requester=requester, within=_optional_duration(within)
    )
    left: int = (yield ServiceCall("Drain", request)).slots_left
    return left


def preview_drain(host: str, slot: int | None, within: float | None) -> Calls[control_pb2.PreviewDrainResponse]:
    """See Client.preview_drain."""
    request = control_pb2.PreviewDrainRequest(host=host, slot=slot, within=_optional_duration(within))
    answer: control_pb2.PreviewDrainResponse = yield ServiceCall("PreviewDrain", request)
    return answer


def _optional_duration(seconds: float | None) -> Duration | None:
    return None if seconds is None else duration(seconds)


def undrain(host: str, slot: int | None, requester: str) -> Calls[None]:
    """See Client.undrain."""
    yield ServiceCall("Undrain", control_pb2.UndrainRequest(host=host, slot=slot, requester=requester))


def resize(size: int, requester: str) -> Calls[None]:
    """See Client.resize."""
    yield ServiceCall("Resize", control_pb2.ResizeRequest(size=size, requester=requester))


def stop(reason: str, requester: str) -> Calls[None]:
    """See Client.stop."""
    yield ServiceCall("Stop", control_pb2.StopRequest(reason=reason, requester=requester))


def save_checkpoint(requester: str) -> Calls[control_pb2.SaveCheckpointResponse]:
    """See Client.save_checkpoint."""
    request = control_pb2.SaveCheckpointRequest(requester=requester)
    answer: control_pb2.SaveCheckpointResponse = yield ServiceCall("SaveCheckpoint", request)
    return answer


def check_may_steer() -> Calls[None]:
    """See Client.check_may_steer."""
    yield ServiceCall("Undrain", control_pb2.UndrainRequest())


def stacks(rank: int | None, host: str, slot: int | None, worker_id: int) -> status_pb2.ReadStacksRequest:
    """See Client.stacks."""
    return status_pb2.ReadStacksRequest(rank=rank, host=host, slot=slot, worker_id=worker_id)


def output(
    rank: int | None, host: str, slot: int | None, worker_id: int, since: int, lines: int, follow: bool
) -> status_pb2.ReadOutputRequest:
    """See Client.output."""
    return status_pb2.ReadOutputRequest(
        rank=rank, host=host, slot=slot, worker_id=worker_id, since=since, last=lines, follow=follow
    )
