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
from edriver.v1 import control_pb2, resources_pb2, status_pb2

Answer = TypeVar("Answer")


class Client:
    """Watches and steers one run. Every method raises RunError if the driver refuses, or does not answer.

    Args:
        address: the address of the run's driver: see `here` and `elsewhere`.
        timeout: the seconds that the driver may take to answer; watches have no time limit.
        requester: the operator's name in the run's events; None: this process's user and machine (alice@login1).
    """

    def __init__(self, address: Address, timeout: float = ANSWER_TIMEOUT, requester: str | None = None) -> None:
        self._channel = channel_to(address, grpc.insecure_channel, grpc.secure_channel)
        self._core = Core(address, timeout, self._channel)
        self._requester = own_name() if requester is None else requester
        self.run_id = address.run_id

    def __enter__(self) -> Self:
        """Return the client itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the client."""
        self.close()

    def close(self) -> None:
        """Close the connection, which ends all watches."""
        self._channel.close()

    # ---- looking ---------------------------------------------------------------------------------------------

    def status(self) -> status_pb2.Run:
        """The current state of the run."""
        return self._do(core.status())

    def snapshot(self) -> status_pb2.GetRunResponse:
        """The current state of the run, and the number of the last event that it includes, from which to watch."""
        return self._do(core.snapshot())

    def rounds(self, limit: int = 0) -> list[status_pb2.Round]:
        """The latest `limit` rounds, oldest first; 0: all that the driver remembers."""
        return self._do(core.rounds(limit))

    def progress_history(self) -> list[status_pb2.ProgressSample]:
        """Samples of the progress since the run began, oldest first; the longer the run, the farther apart."""
        return self._do(core.progress_history())

    def usage_history(self) -> list[resources_pb2.UsageSample]:
        """Samples of the hosts' usage since the run began, oldest first; the longer the run, the farther apart."""
        return self._do(core.usage_history())

    def events(self, since: int = 0) -> list[status_pb2.Event]:
        """All events so far after number `since`. RunError has OUT_OF_RANGE if that is in the future or too old."""
        return self._do(core.events(since))

    def watch(self, since: int = 0) -> Iterator[status_pb2.Event]:
        """Yield the events after number `since` as they happen, until the run ends: the last one has `run_ended`.

        If the connection breaks, the watch continues from the last event, without a gap, as soon as it reaches the
        driver again. RunError has OUT_OF_RANGE as for `events`.
        """
        return (response.event for response in self._watch(since, progress=False))

    def watch_progress(self, since: int = 0) -> Iterator[status_pb2.WatchResponse]:
        """Like `watch`, with the progress about once a second in between."""
        return self._watch(since, progress=True)

    def _watch(self, since: int, progress: bool) -> Iterator[status_pb2.WatchResponse]:
        watching = Watching(since, progress)
        with self._core.errors_in_words():
            for attempt in Redialling(**watching.policy):
                with attempt:
                    for response in self._core.methods["Watch"](watching.request):
                        for part in watching.parts_of(response):
                            yield part
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
            rank: the rank under which a line was written.
            host: the host on which it was written.
            slot: the slot of the worker that wrote it.
            worker_id: the ID of the worker that wrote it.
            since: only lines after this number.
            lines: only the latest lines, at most this many; 0: all that are kept.
            follow: whether to continue until the run ends. A broken connection also ends the output.
        """
        request = core.output(rank, host, slot, worker_id, since, lines, follow)
        with self._core.errors_in_words():
            for response in self._core.methods["ReadOutput"](request):
                yield from response.lines

    def stacks(
        self, rank: int | None = None, host: str = "", slot: int | None = None, worker_id: int = 0
    ) -> Iterator[status_pb2.ReadStacksResponse]:
        """The current stacks of all threads of the workers, in order of rank. Workers must match all given arguments.

        Args:
            rank: the worker's rank.
            host: the worker's host.
            slot: the worker's slot.
            worker_id: the worker's ID.
        """
        with self._core.errors_in_words():
            yield from self._core.methods["ReadStacks"](core.stacks(rank, host, slot, worker_id))

    # ---- steering --------------------------------------------------------------------------------------------

    def drain(self, host: str, slot: int | None = None, reason: str = "", within: float | None = None) -> int:
        """Stop using a host, or one of its slots.

        Its workers train on while replacements boot in free slots elsewhere, and change places with them at one agreed
        step; where no slots are free, they leave at the next one.

        Args:
            host: the host, as discovery names it.
            slot: the slot, counted from 0; None: the whole host.
            reason: the reason, for observers.
            within: seconds in which the workers must have left, replaced or not; 0: at once; None: as long as the run
                waits for workers (--elastic-timeout).

        Returns:
            the number of slots that the run may still use.
        """
        return self._do(core.drain(host, slot, reason, within, self._requester))

    def preview_drain(
        self, host: str, slot: int | None = None, within: float | None = None
    ) -> control_pb2.PreviewDrainResponse:
        """What `drain` would do now: whether training pauses, and for how long. Changes nothing; arguments as there."""
        return self._do(core.preview_drain(host, slot, within))

    def undrain(self, host: str, slot: int | None = None) -> None:
        """Use a drained host, or one slot of it, again."""
        self._do(core.undrain(host, slot, self._requester))

    def resize(self, size: int) -> None:
        """Set the maximum number of workers from now on, between --min-np and --max-np."""
        self._do(core.resize(size, self._requester))

    def save_checkpoint(self) -> control_pb2.SaveCheckpointResponse:
        """Have a checkpoint written to disk, behind training; does not wait for that.

        In restart mode it is the newest whole one in memory, in elastic mode one of the next boundary. The run keeps
        the request until such a checkpoint, or a later one, is on disk, also if workers, hosts or its driver are lost
        before. If the run ends first, it says so.

        Raises:
            RunError: no checkpoint in memory is whole, or it does not belong on disk; or no worker has called
                `edriver.run` yet, or its state has no checkpoints.
        """
        return self._do(core.save_checkpoint(self._requester))

    def stop(self, reason: str = "") -> None:
        """End the run."""
        self._do(core.stop(reason, self._requester))

    def check_may_steer(self) -> None:
        """Check, without changing anything, whether the driver lets this client steer.

        Raises:
            RunError: the driver does not, or does not answer.
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


def find(run: str | None = None, credentials: Path | None = None, driver: str | None = None) -> Client:
    """Return a client of the run that has written `credentials`, or without them of a run on this machine.

    Args:
        run: the ID or the name of a run of this user on this machine; None: the only one.
        credentials: the file that --status-credentials or --control-credentials named.
        driver: with credentials, HOST:PORT of the driver; None: as in the file.

    Raises:
        RunError: the run does not exist, or the file cannot be used.
    """
    return Client(here(run) if credentials is None else elsewhere(credentials, driver))
