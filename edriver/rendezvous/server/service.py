"""The gRPC services of `edriver rendezvous`: they check what comes in, and hand it to the runs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, NoReturn

import grpc
import grpc.aio
from google.protobuf.message import Message

from edriver.model.limits import OutOfBoundsError
from edriver.rendezvous.server.runs import Runs
from edriver.v1 import rendezvous_pb2 as pb
from edriver.v1 import rendezvous_pb2_grpc
from edriver.wire import message_limits
from edriver.wire.store_values import NotANumberError

if TYPE_CHECKING:
    from edriver.v1.rendezvous_pb2_grpc import _ServicerContext

RENDEZVOUS_SERVICE: Final = pb.DESCRIPTOR.services_by_name["RendezvousService"].full_name
STORE_SERVICE: Final = pb.DESCRIPTOR.services_by_name["StoreService"].full_name


class Fault(Exception):  # noqa: N818  it is what a call ends with
    """What a caller is answered instead: a status and a sentence."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


@contextlib.contextmanager
def _faults(fatal: Callable[[OSError], None]) -> Iterator[None]:
    """Turn what can be wrong into what the caller is answered."""
    try:
        yield
    except OutOfBoundsError as error:
        raise Fault(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error)) from None
    except NotANumberError as error:
        raise Fault(grpc.StatusCode.FAILED_PRECONDITION, str(error)) from None
    except OSError as error:
        fatal(error)
        raise Fault(grpc.StatusCode.UNAVAILABLE, "the server cannot write its journal and ends") from None


async def _abort(context: _ServicerContext, fault: Fault) -> NoReturn:
    await context.abort(fault.code, fault.text)
    raise AssertionError("abort raises")


def _check(request: Message) -> None:
    try:
        message_limits.check(request)
    except OutOfBoundsError as error:
        raise Fault(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from None


class RendezvousService(rendezvous_pb2_grpc.RendezvousServiceServicer):
    """RendezvousService (proto/edriver/v1/rendezvous.proto).

    Args:
        runs: all runs.
        clock: seconds, monotonic.
        fatal: called when a change cannot be written to disk: the server must not continue.
    """

    def __init__(self, runs: Runs, clock: Callable[[], float], fatal: Callable[[OSError], None]) -> None:
        self._runs = runs
        self._clock = clock
        self._fatal = fatal

    async def GetState(  # noqa: N802
        self, request: pb.GetStateRequest, context: _ServicerContext
    ) -> pb.GetStateResponse:
        """Read a run's state."""
        try:
            _check(request)
        except Fault as fault:
            await _abort(context, fault)
        run = self._runs.find(request.run_id)
        if run is None or not run.state.version:
            return pb.GetStateResponse()
        run.state.expire(self._clock())
        change, whole = run.state.since(request.known if request.HasField("known") else None)
        return pb.GetStateResponse(token=run.state.token, change=change, whole=whole)

    async def SetState(  # noqa: N802
        self, request: pb.SetStateRequest, context: _ServicerContext
    ) -> pb.SetStateResponse:
        """Change a run's state, or not."""
        known = pb.StateToken()
        known.CopyFrom(request.known)
        try:
            _check(request)
            with _faults(self._fatal):
                run, done = self._runs.set_state(request)
        except Fault as fault:
            await _abort(context, fault)
        if not run.state.version:
            return pb.SetStateResponse()
        if done and request.brief:
            return pb.SetStateResponse(done=True)
        change, whole = run.state.since(known if known.incarnation else None)
        return pb.SetStateResponse(done=done, token=run.state.token, change=change, whole=whole)

    async def ListRendezvous(  # noqa: N802
        self, _request: pb.ListRendezvousRequest, _context: _ServicerContext
    ) -> pb.ListRendezvousResponse:
        """All runs."""
        found = pb.ListRendezvousResponse()
        for run_id, run in self._runs:
            run.state.expire(self._clock())
            found.rendezvous.add(
                run_id=run_id,
                state=run.state.since(None)[0],
                min_nodes=run.state.min_nodes,
                max_nodes=run.state.max_nodes,
                store_keys=len(run.keys),
                store_bytes=run.keys.size,
            )
        return found


class StoreService(rendezvous_pb2_grpc.StoreServiceServicer):
    """StoreService (proto/edriver/v1/rendezvous.proto).

    Args:
        runs: all runs.
        fatal: as for RendezvousService.
    """

    def __init__(self, runs: Runs, fatal: Callable[[OSError], None]) -> None:
        self._runs = runs
        self._fatal = fatal

    async def SetKeys(  # noqa: N802
        self, request: pb.SetKeysRequest, context: _ServicerContext
    ) -> pb.SetKeysResponse:
        """Set keys."""
        try:
            _check(request)
            with _faults(self._fatal):
                self._runs.set_keys(request)
        except Fault as fault:
            await _abort(context, fault)
        return pb.SetKeysResponse()

    async def GetKeys(  # noqa: N802
        self, request: pb.GetKeysRequest, context: _ServicerContext
    ) -> pb.GetKeysResponse:
        """Wait until all keys are set."""
        try:
            _check(request)
            with _faults(self._fatal):
                run = self._runs.get(request.run_id)
        except Fault as fault:
            await _abort(context, fault)
        while (missing := next((key for key in request.keys if run.keys.get(key) is None), None)) is not None:
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            run.waiting[missing].add(waiting)
            try:
                await waiting
            finally:  # the caller may have gone
                run.waiting[missing].discard(waiting)
                if not run.waiting[missing]:
                    del run.waiting[missing]
        if request.wait_only:
            return pb.GetKeysResponse()
        return pb.GetKeysResponse(values=[run.keys.get(key) or b"" for key in request.keys])

    async def ChangeKey(  # noqa: N802
        self, request: pb.ChangeKeyRequest, context: _ServicerContext
    ) -> pb.ChangeKeyResponse:
        """Change one key."""
        try:
            _check(request)
            with _faults(self._fatal):
                return self._runs.change_key(request)
        except Fault as fault:
            await _abort(context, fault)

    async def CheckKeys(  # noqa: N802
        self, request: pb.CheckKeysRequest, context: _ServicerContext
    ) -> pb.CheckKeysResponse:
        """Whether all keys are set."""
        try:
            _check(request)
        except Fault as fault:
            await _abort(context, fault)
        run = self._runs.find(request.run_id)
        keys = request.keys
        return pb.CheckKeysResponse(all_set=run is not None and all(run.keys.get(key) is not None for key in keys))

    async def CountKeys(  # noqa: N802
        self, request: pb.CountKeysRequest, _context: _ServicerContext
    ) -> pb.CountKeysResponse:
        """The number of keys of a run."""
        run = self._runs.find(request.run_id)
        return pb.CountKeysResponse(count=0 if run is None else len(run.keys))
