"""ControlService over real gRPC: an operator's requests, checked against the state of the run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager

import grpc
import grpc.aio
import pytest

from edriver.driver.core.membership import Membership
from edriver.driver.services.control import ControlServer
from edriver.model import events
from edriver.model.defaults import ELASTIC_TIMEOUT
from edriver.model.hosts import Host, HostSet
from edriver.model.ids import NO_VERSION
from edriver.model.mode import Mode
from edriver.model.settings import WHOLE_HOSTS, Settings
from edriver.model.store_address import StoreAddress
from edriver.v1 import control_pb2, control_pb2_grpc
from edriver.wire.conversion import duration
from tests import serving


def soon(work: Coroutine[None, None, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 20))


@asynccontextmanager
async def served(
    put: list[events.Event],
    mode: Mode = Mode.ELASTIC,
    limits: Settings | None = None,
    before: Sequence[events.Event] = (),
) -> AsyncIterator[control_pb2_grpc.ControlServiceAsyncStub]:
    """A run with at least 2 workers on hosts a (2 slots) and b (1 slot)."""
    membership = Membership(limits or Settings(np=2, min_np=2, max_np=3, mode=mode), now=0.0)
    membership.step(events.HostsObserved(HostSet((Host("a", 2), Host("b", 1)))), 0.0)
    for event in before:
        membership.step(event, 0.0)
    control = ControlServer(membership, put.append, lambda *wish: put.append(events.StopRequested(*wish)))
    async with serving.served((control_pb2_grpc.add_ControlServiceServicer_to_server, control)) as channel:
        yield control_pb2_grpc.ControlServiceStub(channel)


@pytest.mark.parametrize(
    ("host", "slot", "left"),
    [
        pytest.param("b", None, 2, id="a-host"),
        pytest.param("a", 1, 2, id="a-slot"),
    ],
)
def test_a_drain_is_handed_on(host: str, slot: int | None, left: int) -> None:
    async def work() -> None:
        put: list[events.Event] = []
        async with served(put) as stub:
            drain = control_pb2.DrainRequest(host=host, slot=slot, reason="it runs hot", requester="ada@login1")
            assert (await stub.Drain(drain)).slots_left == left
            await stub.Undrain(control_pb2.UndrainRequest(host=host, slot=slot, requester="ada@login1"))
        assert put == [
            events.DrainRequested(host, slot, "it runs hot", "ada@login1", ELASTIC_TIMEOUT),
            events.UndrainRequested(host, slot, "ada@login1"),
        ]

    soon(work())


@pytest.mark.parametrize(
    ("host", "slot", "code", "sentence"),
    [
        pytest.param("c", None, grpc.StatusCode.NOT_FOUND, "this run has no host 'c'; it has a, b", id="unknown-host"),
        pytest.param(
            "b", 1, grpc.StatusCode.NOT_FOUND, "host b has 1 slot, counted from 0: there is no slot 1", id="slot"
        ),
        pytest.param(
            "a",
            None,
            grpc.StatusCode.FAILED_PRECONDITION,
            "this leaves 1 slot; the run needs 2 (--min-np",
            id="few",
        ),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(
    host: str, slot: int | None, code: grpc.StatusCode, sentence: str
) -> None:
    async def work() -> None:
        put: list[events.Event] = []
        async with served(put) as stub:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Drain(control_pb2.DrainRequest(host=host, slot=slot))
        assert caught.value.code() is code
        assert sentence in (caught.value.details() or "")
        assert put == []

    soon(work())


def test_a_run_is_resized_within_its_limits() -> None:
    async def work() -> None:
        put: list[events.Event] = []
        async with served(put) as stub:
            for size in (2, 3):
                await stub.Resize(control_pb2.ResizeRequest(size=size, requester="ada@login1"))
            for size in (0, 1, 4):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await stub.Resize(control_pb2.ResizeRequest(size=size))
                assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
                assert caught.value.details() == (
                    f"this run uses 2 (--min-np) to 3 (--max-np) workers: {size} is not in this range; "
                    "edriver stop ends the run"
                )
        assert put == [events.ResizeRequested(2, "ada@login1"), events.ResizeRequested(3, "ada@login1")]

    soon(work())


def test_a_run_in_replicas_keeps_whole_ones() -> None:
    async def work() -> None:
        put: list[events.Event] = []
        pairs = Settings(np=2, min_np=2, max_np=6, mode=Mode.RESTART, replica_size=2)
        async with served(put, limits=pairs) as stub:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Resize(control_pb2.ResizeRequest(size=5))
            assert caught.value.details() == (
                "this run's workers are in replicas of 2 (--replica-size), which 5 workers do not make up: "
                "ask for 4 or 6"
            )
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Drain(control_pb2.DrainRequest(host="a", slot=1))  # the other slot of a, and that of b
            assert (caught.value.details() or "").startswith("this leaves 0 slots; the run needs 2")
            await stub.Resize(control_pb2.ResizeRequest(size=4))
            assert (await stub.Drain(control_pb2.DrainRequest(host="b"))).slots_left == 2
        assert put[0] == events.ResizeRequested(4)
        any_size = Settings(np=2, min_np=2, max_np=6, mode=Mode.RESTART, replica_size=WHOLE_HOSTS)
        async with served(put, limits=any_size) as stub:
            await stub.Resize(control_pb2.ResizeRequest(size=5))
        assert put[-1] == events.ResizeRequested(5)

    soon(work())


@pytest.mark.parametrize(
    ("mode", "why"),
    [
        pytest.param(Mode.RESTART, "this run has no whole checkpoint in memory", id="restart"),
        pytest.param(Mode.ELASTIC, "no worker of this run has called edriver.run yet", id="elastic"),
    ],
)
def test_a_checkpoint_that_cannot_be_written_to_disk_is_refused(mode: Mode, why: str) -> None:
    async def work() -> None:
        put: list[events.Event] = []
        async with served(put, mode) as stub:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.SaveCheckpoint(control_pb2.SaveCheckpointRequest())
            assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
            assert str(caught.value.details()).startswith(why)
        assert put == []

    soon(work())


@pytest.mark.parametrize("checkpoint", [None, 0], ids=["no-checkpoints", "checkpoints"])
def test_a_checkpoint_may_be_asked_for_before_a_round_trains_if_the_state_has_them(checkpoint: int | None) -> None:
    async def work() -> None:
        put: list[events.Event] = []
        waits = events.WorkerWaiting(1, 1, NO_VERSION, StoreAddress("a", 1), "", 0, "", checkpoint)
        async with served(put, before=[events.AgentConnected("a", 1), waits]) as stub:
            if checkpoint is None:
                with pytest.raises(grpc.aio.AioRpcError, match="script has no checkpoints"):
                    await stub.SaveCheckpoint(control_pb2.SaveCheckpointRequest())
            else:
                assert not (await stub.SaveCheckpoint(control_pb2.SaveCheckpointRequest())).HasField("step")
        assert put == [events.CheckpointRequested()] * (checkpoint is not None)

    soon(work())


def test_a_run_is_stopped() -> None:
    async def work() -> None:
        put: list[events.Event] = []
        async with served(put) as stub:
            await stub.Stop(control_pb2.StopRequest())
            await stub.Stop(control_pb2.StopRequest(reason="its loss is flat", requester="ada@login1"))
        assert put == [events.StopRequested(""), events.StopRequested("its loss is flat", "ada@login1")]

    soon(work())


def test_a_drain_has_the_time_that_it_is_given() -> None:
    async def work() -> None:
        put: list[events.Event] = []
        async with served(put) as stub:
            await stub.Drain(control_pb2.DrainRequest(host="b", within=duration(120)))
            await stub.Drain(control_pb2.DrainRequest(host="b", within=duration(0)))
        assert put == [events.DrainRequested("b", None, "", within=within) for within in (120.0, 0.0)]

    soon(work())


def test_a_preview_of_a_drain_changes_nothing() -> None:
    async def work() -> None:
        put: list[events.Event] = []
        async with served(put) as stub:
            found = await stub.PreviewDrain(control_pb2.PreviewDrainRequest(host="b", within=duration(120)))
            assert (found.outcome, found.slots_left) == (control_pb2.DRAIN_OUTCOME_UNUSED, 2)  # nothing trains yet
            assert (found.within, found.restarts) == (duration(120), False)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.PreviewDrain(control_pb2.PreviewDrainRequest(host="a"))
            assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert put == []

    soon(work())
