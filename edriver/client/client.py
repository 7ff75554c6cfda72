"""The blocking client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import grpc

from edriver.client import core
from edriver.client.addresses import Address, elsewhere, here
from edriver.client.core import ANSWER_TIMEOUT, Calls, Core, channel_to
from edriver.client.errors import RunError
from edriver.client.redial import Redialling, Watching
from edriver.client.requester import own_name
from edriver.v1 import resources_pb2, status_pb2

Answer = TypeVar("Answer")


class Client:
    """Watches and steers one run. Every method raises RunError where the driver refuses, or does not answer.

    Args:
        address: where the run's driver is: see `here` and `elsewhere`.
        timeout: seconds that it may take to answer; a watch has no such bound.
        requester: the operator, as the run's events name them; None: this process's user and machine, alice@login1.
    """

    def __init__(self, address: Address, timeout: float = ANSWER_TIMEOUT, requester: str | None = None) -> None:
        self._channel = channel_to(address, grpc.insecure_channel, grpc.secure_channel)
        self._core = Core(address, timeout, self._channel)
        self._requester = own_name() if requester is None else requester
        self.run_id = address.run_id

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
        """The current state of the run."""
        return self._do(core.status())

    def snapshot(self) -> status_pb2.GetRunResponse:
        """The current state of the run, and the number of the last event that it includes: watch from there."""
        return self._do(core.snapshot())

    def rounds(self, limit: int = 0) -> list[status_pb2.Round]:
        """The latest rounds, oldest first; 0: all that are remembered."""
        return self._do(core.rounds(limit))

    def progress_history(self) -> list[status_pb2.ProgressSample]:
        """How far training was at times since the run began, oldest first; the longer the run, the farther apart."""
        return self._do(core.progress_history())

    def usage_history(self) -> list[resources_pb2.UsageSample]:
        """What the hosts used at times since the run began, oldest first; the longer the run, the farther apart."""
        return self._do(core.usage_history())

    def events(self, since: int = 0) -> list[status_pb2.Event]:
        """All events after this number so far. RunError with OUT_OF_RANGE: it is of the future, or too long ago."""
        return self._do(core.events(since))

    def watch(self, since: int = 0) -> Iterator[status_pb2.Event]:
        """What happens after this number, as it happens, until the run has ended: the last one has `run_ended`.

        If the connection breaks, it continues from the last event, without a gap, as soon as the driver is reached
        again. RunError with OUT_OF_RANGE as for `events`.
        """
        return (response.event for response in self._watch(since, progress=False))

    def watch_progress(self, since: int = 0) -> Iterator[status_pb2.WatchResponse]:
        """As `watch`, with word of the progress about once a second in between."""
        return self._watch(since, progress=True)

    def _watch(self, since: int, progress: bool) -> Iterator[status_pb2.WatchResponse]:
        watching = Watching(since, progress)
        with self._core.errors_in_words():
            for attempt in Redialling(**watching.policy):
                with attempt:
                    for response in self._core.methods["Watch"](watching.request):
                        watching.take(response)
                        yield response
                        if watching.over:
                            return

    def output(
        self,
        rank: int | None = None,
        host: str = "",
        slot: int | None = None,
        worker_id: int = 0,
        since: int = 0,
        lines: int = 0,
        follow: bool = False,
    ) -> Iterator[status_pb2.WorkerLine]:
        """The latest output of the workers, including those that have ended. Lines must match all given arguments.

        Args:
            rank: lines that were written under this rank,
            host: on this host,
            slot: in this slot,
            worker_id: by this worker.
            since: only lines after this number.
            lines: only this many of the matching lines, the latest ones; 0: all that are kept.
            follow: whether to continue until the run ends. A broken connection also ends it.
        """
        request = core.output(rank, host, slot, worker_id, since, lines, follow)
        with self._core.errors_in_words():
            for response in self._core.methods["ReadOutput"](request):
                yield from response.lines

    def stacks(
        self, rank: int | None = None, host: str = "", slot: int | None = None, worker_id: int = 0
    ) -> Iterator[status_pb2.ReadStacksResponse]:
        """Where the threads of workers stand now, in order of rank; all that is given must be true of a worker.

        Args:
            rank: of the worker with this rank,
            host: of those on this host,
            slot: in this slot,
            worker_id: of this worker.
        """
        with self._core.errors_in_words():
            yield from self._core.methods["ReadStacks"](core.stacks(rank, host, slot, worker_id))

    # ---- steering --------------------------------------------------------------------------------------------

    def drain(self, host: str, slot: int | None = None, reason: str = "") -> int:
        """Stop using a host, or one of its slots, from the next agreed step on; returns how many slots remain."""
        return self._do(core.drain(host, slot, reason, self._requester))

    def undrain(self, host: str, slot: int | None = None) -> None:
        """Let a host, or one slot of it, be used again."""
        self._do(core.undrain(host, slot, self._requester))

    def resize(self, size: int) -> None:
        """Set the maximum number of workers from now on, between --min-np and --max-np."""
        self._do(core.resize(size, self._requester))

    def stop(self, reason: str = "") -> None:
        """End the run."""
        self._do(core.stop(reason, self._requester))

    def check_may_steer(self) -> None:
        """Find out whether the driver lets this client steer; it changes nothing.

        Raises:
            RunError: it does not, or does not answer.
        """
        try:
            self._do(core.check_may_steer())
        except RunError as error:
            if error.code is not grpc.StatusCode.NOT_FOUND:  # no host has an empty name
                raise

    def _do(self, calls: Calls[Answer]) -> Answer:
        answer = None
        while True:
            try:
                call = calls.send(answer)
            except StopIteration as end:
                returned: Answer = end.value
                return returned
            with self._core.errors_in_words():
                answer = self._core.begin(call)


def find(run_id: str | None = None, credentials: Path | None = None, driver: str | None = None) -> Client:
    """A client of a run: with credentials of the one that has written them, else of one on this machine.

    Args:
        run_id: which run of this user here; None: the only one.
        credentials: a file that --status-credentials or --control-credentials has named.
        driver: with credentials, HOST:PORT; None: as in the file.

    Raises:
        RunError: there is no such run, or the file cannot be used.
    """
    return Client(here(run_id) if credentials is None else elsewhere(credentials, driver))
