"""The blocking client."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar

import grpc
import tenacity

from edriver.client.addresses import Address, elsewhere, here
from edriver.client.errors import error_of
from edriver.client.redial import Patience, policy
from edriver.v1 import control_pb2, control_pb2_grpc, status_pb2, status_pb2_grpc

ANSWER_BOUND: Final = 10.0
"""Seconds that a driver may take to answer."""

Answer = TypeVar("Answer")


class Client:
    """Watches and steers one run. Every method raises RunError where the driver refuses, or does not answer.

    Args:
        address: where the run's driver is: see `here` and `elsewhere`.
        timeout: seconds that it may take to answer; a watch has no such bound.
    """

    def __init__(self, address: Address, timeout: float = ANSWER_BOUND) -> None:
        self.run_id = address.run_id
        self._timeout = timeout
        credentials = address.credentials
        if credentials is None:
            self._channel = grpc.insecure_channel(address.target, options=address.options)
        else:
            self._channel = grpc.secure_channel(address.target, credentials, options=address.options)
        self._status = status_pb2_grpc.StatusServiceStub(self._channel)
        self._control = control_pb2_grpc.ControlServiceStub(self._channel)

    def __enter__(self) -> Self:
        """Use it."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Close the connection; a watch that is under way ends."""
        self._channel.close()

    # ---- looking ---------------------------------------------------------------------------------------------

    def status(self) -> status_pb2.Run:
        """How the run stands now."""
        return self.snapshot().run

    def snapshot(self) -> status_pb2.GetRunResponse:
        """How the run stands now, and the number of the last event that is in it: watch from there."""
        return self._asked(partial(self._status.GetRun, status_pb2.GetRunRequest(), timeout=self._timeout))

    def rounds(self, limit: int = 0) -> list[status_pb2.Round]:
        """The latest rounds, oldest first; 0: all that are remembered."""
        request = status_pb2.ListRoundsRequest(limit=limit)
        return list(self._asked(partial(self._status.ListRounds, request, timeout=self._timeout)).rounds)

    def progress_history(self) -> list[status_pb2.ProgressSample]:
        """How far training was at times since the run began, oldest first; the longer the run, the farther apart."""
        request = status_pb2.ListProgressRequest()
        return list(self._asked(partial(self._status.ListProgress, request, timeout=self._timeout)).samples)

    def events(self, since: int = 0) -> list[status_pb2.Event]:
        """All events after this number so far. RunError with OUT_OF_RANGE: it is of the future, or too long ago."""
        found: list[status_pb2.Event] = []
        while True:
            request = status_pb2.ListEventsRequest(since=found[-1].seq if found else since)
            portion = self._asked(partial(self._status.ListEvents, request, timeout=self._timeout))
            if not portion.events:
                return found
            found += portion.events

    def watch(self, since: int = 0) -> Iterator[status_pb2.Event]:
        """What happens after this number, as it happens, until the run has ended: the last one has `run_ended`.

        Where the connection breaks it goes on from the last event, without a gap, as soon as the driver is reached
        again. RunError with OUT_OF_RANGE as for `events`.
        """
        return (told.event for told in self._watch(since, progress=False))

    def watch_progress(self, since: int = 0) -> Iterator[status_pb2.WatchResponse]:
        """As `watch`, with word of the progress about once a second in between."""
        return self._watch(since, progress=True)

    def _watch(self, since: int, progress: bool) -> Iterator[status_pb2.WatchResponse]:
        seq, patience = since, Patience()
        try:
            for attempt in tenacity.Retrying(**policy(patience)):
                with attempt:
                    for told in self._status.Watch(status_pb2.WatchRequest(since=seq, progress=progress)):
                        patience.heard()
                        seq = told.event.seq or seq
                        yield told
        except grpc.RpcError as error:
            raise error_of(self.run_id, error) from None

    # ---- steering --------------------------------------------------------------------------------------------

    def drain(self, host: str, slot: int | None = None, reason: str = "") -> int:
        """Have a host, or one slot of it, left in good order and not used again; returns how many slots are left."""
        request = control_pb2.DrainRequest(host=host, slot=slot, reason=reason)
        return self._asked(partial(self._control.Drain, request, timeout=self._timeout)).slots_left

    def undrain(self, host: str, slot: int | None = None) -> None:
        """Let a host, or one slot of it, be used again."""
        request = control_pb2.UndrainRequest(host=host, slot=slot)
        self._asked(partial(self._control.Undrain, request, timeout=self._timeout))

    def resize(self, size: int) -> None:
        """Use at most so many workers from now on, between --min-np and --max-np."""
        request = control_pb2.ResizeRequest(size=size)
        self._asked(partial(self._control.Resize, request, timeout=self._timeout))

    def stop(self, reason: str = "") -> None:
        """End the run."""
        request = control_pb2.StopRequest(reason=reason)
        self._asked(partial(self._control.Stop, request, timeout=self._timeout))

    def _asked(self, call: Callable[[], Answer]) -> Answer:
        try:
            return call()
        except grpc.RpcError as error:
            raise error_of(self.run_id, error) from None


def find(run_id: str | None = None, credentials: Path | None = None, driver: str | None = None) -> Client:
    """A client of a run: with credentials of the one that has written them, else of one on this machine.

    Args:
        run_id: which run of this user here; None: the only one.
        credentials: a file that --status-credentials or --control-credentials has named.
        driver: with credentials, HOST:PORT; None: as the file says.

    Raises:
        RunError: there is no such run, or the file cannot be used.
    """
    return Client(here(run_id) if credentials is None else elsewhere(credentials, driver))
