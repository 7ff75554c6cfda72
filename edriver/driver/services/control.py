"""ControlService: how an operator controls the run. Checks requests against the run's state, and passes them on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import grpc
from google.protobuf.message import Message

from edriver.driver.core.drain_preview import DrainOutcome, preview_drain
from edriver.driver.core.membership import Membership
from edriver.model import events
from edriver.model.limits import OutOfBoundsError
from edriver.model.settings import WHOLE_HOSTS, nearest_sizes
from edriver.text.phrases import count_text, replicas_text, some_of
from edriver.v1 import control_pb2, control_pb2_grpc
from edriver.wire import message_limits
from edriver.wire.conversion import duration, span_seconds

if TYPE_CHECKING:
    from edriver.model.records import HostRecord
    from edriver.v1.control_pb2_grpc import _ServicerContext


_OUTCOMES: Final = {
    DrainOutcome.UNUSED: control_pb2.DRAIN_OUTCOME_UNUSED,
    DrainOutcome.MOVES: control_pb2.DRAIN_OUTCOME_MOVES,
    DrainOutcome.SHRINKS: control_pb2.DRAIN_OUTCOME_SHRINKS,
    DrainOutcome.PAUSES: control_pb2.DRAIN_OUTCOME_PAUSES,
}


class ControlServer(control_pb2_grpc.ControlServiceServicer):
    """ControlService (proto/edriver/v1/control.proto).

    Args:
        membership: the state of the core; only read.
        put: takes the events.
        stop: ends the run: called with the reason and the requester, of which either may be empty.
    """

    def __init__(
        self, membership: Membership, put: Callable[[events.Event], None], stop: Callable[[str, str], None]
    ) -> None:
        self._membership = membership
        self._put = put
        self._stop = stop

    async def Drain(  # noqa: N802
        self, request: control_pb2.DrainRequest, context: _ServicerContext
    ) -> control_pb2.DrainResponse:
        record, slot, left = await self._drainable(request, context)
        within = self._within(request)
        self._put(events.DrainRequested(record.name, slot, request.reason, request.requester, within))
        return control_pb2.DrainResponse(slots_left=left)

    async def PreviewDrain(  # noqa: N802
        self, request: control_pb2.PreviewDrainRequest, context: _ServicerContext
    ) -> control_pb2.PreviewDrainResponse:
        record, slot, left = await self._drainable(request, context)
        within = self._within(request)
        found = preview_drain(self._membership, record, slot, within)
        return control_pb2.PreviewDrainResponse(
            outcome=_OUTCOMES[found.outcome],
            slots_left=left,
            leaving=found.leaving,
            replaced=found.replaced,
            left=found.left,
            boot=None if found.boot is None else duration(found.boot),
            pause=None if found.pause is None else duration(found.pause),
            within=duration(within),
            restarts=not self._membership.settings.mode.members_survive,
        )

    async def _drainable(
        self, request: control_pb2.DrainRequest | control_pb2.PreviewDrainRequest, context: _ServicerContext
    ) -> tuple[HostRecord, int | None, int]:
        """The place that a request names, and the number of slots that are left without it."""
        await _check(request, context)
        record, slot = await self._place(request, context)
        left = self._left_without(record, slot)
        least = self._membership.settings.min_np
        if left < least:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"this leaves {count_text(left, 'slot')}; the run needs {least} (--min-np, by default -np): "
                "add a host first",
            )
        return record, slot, left

    def _within(self, request: control_pb2.DrainRequest | control_pb2.PreviewDrainRequest) -> float:
        """The seconds in which the workers must have left."""
        if request.HasField("within"):
            return max(0.0, span_seconds(request.within))
        return self._membership.settings.elastic_timeout

    async def Undrain(  # noqa: N802
        self, request: control_pb2.UndrainRequest, context: _ServicerContext
    ) -> control_pb2.UndrainResponse:
        await _check(request, context)
        record, slot = await self._place(request, context)
        self._put(events.UndrainRequested(record.name, slot, request.requester))
        return control_pb2.UndrainResponse()

    async def Resize(  # noqa: N802
        self, request: control_pb2.ResizeRequest, context: _ServicerContext
    ) -> control_pb2.ResizeResponse:
        await _check(request, context)
        settings = self._membership.settings
        if not settings.min_np <= request.size <= settings.max_np:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"this run uses {settings.min_np} (--min-np) to {settings.max_np} (--max-np) workers: "
                f"{request.size} is not in this range; edriver stop ends the run",
            )
        size = settings.replica_size
        if size not in (1, WHOLE_HOSTS) and request.size % size:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"this run's workers are {replicas_text(size)} (--replica-size), which {request.size} workers do not "
                f"make up: ask for {nearest_sizes(request.size, size)}",
            )
        self._put(events.ResizeRequested(request.size, request.requester))
        return control_pb2.ResizeResponse()

    async def Stop(  # noqa: N802
        self, request: control_pb2.StopRequest, context: _ServicerContext
    ) -> control_pb2.StopResponse:
        await _check(request, context)
        self._stop(request.reason, request.requester)
        return control_pb2.StopResponse()

    async def SaveCheckpoint(  # noqa: N802
        self, request: control_pb2.SaveCheckpointRequest, context: _ServicerContext
    ) -> control_pb2.SaveCheckpointResponse:
        await _check(request, context)
        if self._membership.settings.mode.members_survive:
            rounds = self._membership.rounds
            if not rounds.call.checkpoints:
                await context.abort(
                    grpc.StatusCode.FAILED_PRECONDITION,
                    "the state of this run's script has no checkpoints: give it checkpoint=DIR"
                    if rounds.called
                    else "no worker of this run has called edriver.run yet: ask again once it trains",
                )
            self._put(events.CheckpointRequested(request.requester))
            return control_pb2.SaveCheckpointResponse()
        memory = self._membership.memory
        newest = memory.newest_for_disk
        if newest is None:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                "this run has no whole checkpoint in memory that belongs on disk: its script saves none by "
                "edriver.checkpoints.Checkpoints, or has not come to it yet",
            )
        assert newest is not None
        on_disk = newest == memory.disk.on_disk
        if not on_disk:
            self._put(events.CheckpointRequested(request.requester))
        return control_pb2.SaveCheckpointResponse(step=newest[0].step, on_disk=on_disk)

    async def _place(
        self,
        request: control_pb2.DrainRequest | control_pb2.PreviewDrainRequest | control_pb2.UndrainRequest,
        context: _ServicerContext,
    ) -> tuple[HostRecord, int | None]:
        hosts = self._membership.roster.hosts
        record = hosts.get(request.host)
        if record is None or not record.present:
            there = some_of([name for name, host in hosts.items() if host.present] or ["none"])
            await context.abort(grpc.StatusCode.NOT_FOUND, f"this run has no host {request.host!r}; it has {there}")
        assert record is not None
        slot = request.slot if request.HasField("slot") else None
        if slot is not None and slot >= record.slots:
            await context.abort(
                grpc.StatusCode.NOT_FOUND,
                f"host {record.name} has {count_text(record.slots, 'slot')}, counted from 0: there is no slot {slot}",
            )
        return record, slot

    def _left_without(self, record: HostRecord, slot: int | None) -> int:
        """How many slots there will be to use."""
        roster = self._membership.roster
        left = {host.name: set(host.open_slots) for host in roster.hosts.values()}
        left[record.name] -= left[record.name] if slot is None else {slot}
        # Elsewhere than in an unused slot, who is there has a position.
        kept = [worker for worker in roster.live() if worker.slot in left[worker.host]]
        for worker in kept:
            left[worker.host].discard(worker.slot)
        return roster.whole(kept, ((roster.hosts[name], slots) for name, slots in left.items()))


async def _check(request: Message, context: _ServicerContext) -> None:
    """Refuse a request that is out of bounds."""
    try:
        message_limits.check(request)
    except OutOfBoundsError as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
