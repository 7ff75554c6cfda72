"""StatusService: what an observer may know about the run. It only reads."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final, TypeVar

import grpc

from edriver.common.release import VERSION
from edriver.driver.core.failures.root_cause import in_order
from edriver.driver.core.host_state import host_standings
from edriver.driver.core.membership import Membership
from edriver.driver.observe.cause_text import activity_message
from edriver.driver.observe.event_buffer import ForgottenError
from edriver.driver.observe.event_history import EventHistory
from edriver.driver.observe.hosts.usage import UsageTracker
from edriver.driver.observe.snapshots import failure_message, host_status
from edriver.driver.observe.worker_output import WorkerOutput, is_wanted
from edriver.driver.services.event_batches import EventBatches, last_number_of
from edriver.driver.services.stack_questions import StackQuestions, is_meant, names_of, place_of, stacks_message
from edriver.model.mode import Mode
from edriver.model.settings import WHOLE_HOSTS
from edriver.v1 import status_pb2, status_pb2_grpc
from edriver.wire.conversion import duration, round_id_message, timestamp

if TYPE_CHECKING:
    from edriver.v1.status_pb2_grpc import _ServicerContext

MAX_EVENTS_PER_ANSWER: Final = 1000
"""Events of one answer, and those that a watcher who reads them one by one is sent before others have their turn."""

MAX_ANSWER_AGE: Final = 0.25
"""Seconds for which an answer is given to others, too, unless something has happened: many may ask of a large run, and
its workers report once a second."""

MAX_LINES_PER_ANSWER: Final = 1000
"""Lines of workers' output that are sent in one message."""

MAX_OUTPUT_WAIT: Final = 0.2
"""Seconds after which a follower of the workers' output learns that the driver ends,"""

LAST_OUTPUT_WAIT: Final = 0.2
"""and then waits for more of it."""

CLOSE_BOUND: Final = 2.0
"""Seconds that followers of the output have for this, on a machine that is busy."""

PROGRESS_PERIOD: Final = 1.0
"""Seconds between two messages about progress."""

MAX_WATCH_WAIT: Final = 3600.0
"""Seconds after which a watcher looks again, though nothing was announced."""


Found = TypeVar("Found")

_MODES: Final = {Mode.ELASTIC: status_pb2.RUN_MODE_ELASTIC, Mode.RESTART: status_pb2.RUN_MODE_RESTART}


class StatusServer(status_pb2_grpc.StatusServiceServicer):
    """StatusService (proto/edriver/v1/status.proto).

    Args:
        run_id: the run.
        membership: the state of the core; only read.
        event_history: the events, and the workers' progress; only read.
        clock: seconds since the epoch.
        command: a worker's program and arguments.
        steady: seconds of a monotonic clock; None if there is none, and how long the run has lasted is not known.
        name: what its user calls it; empty: nothing.
        tags: its user's, by name.
        output: what its workers have written lately; None: nothing is kept of it.
        stacks: asks where they stand; None: nothing does.
        usage: what its hosts and workers use; None: it is not known.

    Attributes:
        origin: what the run was started from, once that is found.
    """

    def __init__(
        self,
        run_id: str,
        membership: Membership,
        event_history: EventHistory,
        clock: Callable[[], float],
        command: Sequence[str] = (),
        steady: Callable[[], float] | None = None,
        name: str = "",
        tags: Mapping[str, str] | None = None,
        output: WorkerOutput | None = None,
        stacks: StackQuestions | None = None,
        usage: UsageTracker | None = None,
    ) -> None:
        self.origin: Future[status_pb2.Origin] = Future()
        self._output = output
        self._stacks = stacks
        self._usage = usage
        self._closing = False
        self._followers: set[asyncio.Future[None]] = set()
        self._labels = (name, dict(tags or {}))
        self._steady = steady
        self._started = 0.0 if steady is None else steady()
        self._run_id = run_id
        self._membership = membership
        self._event_history = event_history
        self._batches = EventBatches(event_history)
        self._clock = clock
        self._command = command
        self._news = asyncio.Event()
        self._answer = status_pb2.GetRunResponse()
        self._answered = self._progress_at = -math.inf
        self._latest: status_pb2.Progress | None = None

    def announce(self) -> None:
        """Something has been added to the event history."""
        self._news.set()
        self._news = asyncio.Event()

    async def close(self) -> None:
        """The driver is about to end: complete the streams that follow the workers' output, with its end.

        What closes connections comes after: a client that writes to one before it has read the end of its stream loses
        that, and takes the driver for dead.
        """
        self._closing = True
        if self._followers:
            await asyncio.wait(self._followers, timeout=CLOSE_BOUND)

    def _follows(self, context: _ServicerContext) -> None:
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._followers.add(ended)
        ended.add_done_callback(self._followers.discard)
        # When the stream's end has been sent. The stubs know no callable as a callback.
        context.add_done_callback(lambda _: ended.set_result(None))  # type: ignore[arg-type]

    def answer(self) -> status_pb2.GetRunResponse:
        """The state of the run, or that of a moment ago."""
        now = self._clock()
        if self._answer.seq != self._event_history.last_seq or not 0 <= now - self._answered < MAX_ANSWER_AGE:
            self._answered = now
            self._answer = status_pb2.GetRunResponse(run=self._run(now), seq=self._event_history.last_seq)
        return self._answer

    def _progress(self) -> status_pb2.Progress | None:
        """How far training is, or was a moment ago: all watchers get it at the same time."""
        now = self._clock()
        if not 0 <= now - self._progress_at < MAX_ANSWER_AGE:
            self._progress_at, self._latest = now, self._event_history.progress_now()
        return self._latest

    async def GetRun(  # noqa: N802
        self, _request: status_pb2.GetRunRequest, _context: _ServicerContext
    ) -> status_pb2.GetRunResponse:
        return self.answer()

    async def ListRounds(  # noqa: N802
        self, request: status_pb2.ListRoundsRequest, _context: _ServicerContext
    ) -> status_pb2.ListRoundsResponse:
        rounds = list(self._event_history.rounds)
        return status_pb2.ListRoundsResponse(rounds=rounds[-request.limit :] if request.limit else rounds)

    async def ListProgress(  # noqa: N802
        self, _request: status_pb2.ListProgressRequest, _context: _ServicerContext
    ) -> status_pb2.ListProgressResponse:
        return status_pb2.ListProgressResponse(samples=self._event_history.progress.samples())

    async def ListUsage(  # noqa: N802
        self, _request: status_pb2.ListUsageRequest, _context: _ServicerContext
    ) -> status_pb2.ListUsageResponse:
        return status_pb2.ListUsageResponse(samples=self._usage.samples() if self._usage else ())

    async def ListEvents(  # noqa: N802
        self, request: status_pb2.ListEventsRequest, context: _ServicerContext
    ) -> status_pb2.ListEventsResponse:
        limit = min(request.limit or MAX_EVENTS_PER_ANSWER, MAX_EVENTS_PER_ANSWER)
        events = await self._remembered(lambda: self._event_history.since(request.since, limit), context)
        return status_pb2.ListEventsResponse(events=events)

    async def Watch(  # noqa: N802
        self, request: status_pb2.WatchRequest, context: _ServicerContext
    ) -> AsyncIterator[status_pb2.WatchResponse]:
        seq, loop = request.since, asyncio.get_running_loop()
        due = loop.time() if request.progress else math.inf
        last: status_pb2.Progress | None = None
        while True:
            news = self._news
            for answer in await self._answers(seq, request.reads_more, context):
                seq = last_number_of(answer)
                yield answer
            if loop.time() >= due:
                due = (loop.time() // PROGRESS_PERIOD + 1) * PROGRESS_PERIOD  # all at once: it takes fewer wake-ups
                progress = self._progress()
                if progress and progress != last:
                    last = progress
                    yield status_pb2.WatchResponse(progress=progress)
            if seq == self._event_history.last_seq:
                if self._event_history.over:
                    return
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(min(due, loop.time() + MAX_WATCH_WAIT)):
                        await news.wait()

    async def ReadOutput(  # noqa: N802
        self, request: status_pb2.ReadOutputRequest, context: _ServicerContext
    ) -> AsyncIterator[status_pb2.ReadOutputResponse]:
        output = self._output
        if output is None:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION, "this run does not keep the output of its workers (--no-logs)"
            )
            return
        if request.follow:
            self._follows(context)
        wanted = is_wanted(request)
        if not (output.since(0, wanted, 1) or self._may_write(request)):
            workers = self._event_history.current_workers()
            await context.abort(grpc.StatusCode.NOT_FOUND, f"there is no such worker: {names_of(workers)}")
        seq = output.before_last(request.last, request.since, wanted) if request.last else request.since
        while True:
            news, last, closing = output.news, output.last_seq, self._closing
            while lines := output.since(seq, wanted, MAX_LINES_PER_ANSWER):
                seq = lines[-1].seq
                yield status_pb2.ReadOutputResponse(lines=[line.message() for line in lines])
            if not request.follow:
                return
            seq = max(seq, last)  # what came before then is not wanted
            try:
                async with asyncio.timeout(LAST_OUTPUT_WAIT if closing else MAX_OUTPUT_WAIT):
                    await news.wait()
            except TimeoutError:
                if closing:  # the last words of its workers are in
                    return

    def _may_write(self, request: status_pb2.ReadOutputRequest) -> bool:
        """Whether there is a worker whose output is asked for; a follower may come before the first round has ranks."""
        workers = self._event_history.current_workers()
        asked = status_pb2.ReadStacksRequest(host=request.host, worker_id=request.worker_id)
        if request.HasField("rank"):
            asked.rank = request.rank
        if request.HasField("slot"):
            asked.slot = request.slot
        is_early = request.follow and not any(worker.HasField("rank") for worker in workers)
        return is_early or asked == status_pb2.ReadStacksRequest() or any(map(is_meant(asked), workers))

    async def ReadStacks(  # noqa: N802
        self, request: status_pb2.ReadStacksRequest, context: _ServicerContext
    ) -> AsyncIterator[status_pb2.ReadStacksResponse]:
        workers = self._event_history.current_workers()
        chosen = sorted(filter(is_meant(request), workers), key=place_of)
        if not chosen:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"there is no such worker: {names_of(workers)}")
        if self._stacks is not None:
            async for worker, taken in self._stacks.of_all(chosen):
                yield stacks_message(worker, taken, self._clock())

    async def _answers(self, seq: int, many: bool, context: _ServicerContext) -> Iterable[status_pb2.WatchResponse]:
        """The events after this number as a watcher is sent them: many in a message, or one by one."""
        if not many:
            events = await self._remembered(lambda: self._event_history.since(seq, MAX_EVENTS_PER_ANSWER), context)
            return (status_pb2.WatchResponse(event=event) for event in events)
        batch = await self._remembered(lambda: self._batches.after(seq), context)
        return () if batch is None else (batch,)

    async def _remembered(self, find: Callable[[], Found], context: _ServicerContext) -> Found:
        """What is found; a call for events that are not remembered is refused."""
        try:
            return find()
        except ForgottenError as error:
            await context.abort(grpc.StatusCode.OUT_OF_RANGE, str(error))
            raise

    def _run(self, now: float) -> status_pb2.Run:
        membership, event_history = self._membership, self._event_history
        lasted = event_history.lasted()
        if lasted is None and self._steady is not None:
            lasted = self._steady() - self._started
        roster, current, view = membership.roster, membership.round, event_history.view
        standings, ahead = host_standings(membership), now - membership.now
        run = status_pb2.Run(
            run_id=self._run_id,
            version=VERSION,
            start_time=timestamp(event_history.began),
            now=timestamp(now),
            activity=activity_message(membership.activity),
            size=view.size,
            np=membership.settings.np,
            min_np=membership.settings.min_np,
            max_np=membership.settings.max_np,
            hosts=[
                host_status(name, record, standings[name], event_history.discovered(name), ahead)
                for name, record in roster.hosts.items()
            ],
            workers=event_history.current_workers(),
            rounds=view.rounds,
            failures=view.count("failures"),
            preemptions=view.count("preemptions"),
            resizes=view.count("resizes"),
            unproven=view.count("unproven"),
            progress=event_history.progress_now(),
            steps_lost=view.steps_lost,
            command=self._command,
            mode=_MODES[membership.settings.mode],
            uptime=None if lasted is None else duration(lasted),
            time_spent=event_history.ledger.time_spent(now),
            interruption=event_history.ledger.interruption(now),
            recoveries=view.recoveries,
            size_limit=membership.sizes.limit,
            replica_size=max(1, membership.settings.replica_size),
            replicas_are_hosts=membership.settings.replica_size == WHOLE_HOSTS,
            on_loss=membership.settings.on_loss if membership.settings.one_replica else "",
            name=self._labels[0],
            tags=self._labels[1],
            hold_up=event_history.pace.hold_up(),
            stragglers=event_history.pace.stragglers(),
            warnings=event_history.warnings.messages(),
            checkpoints=event_history.checkpoints.with_what_is_written(),
        )
        for host in run.hosts:
            if (held := membership.memory.held(host.name)) is not None:
                host.checkpoint_bytes, host.checkpoint_limit = held.used, held.limit
        if self._usage is not None:
            self._usage.fill(run)
        if current and current.running:
            run.round_id.CopyFrom(round_id_message(current.plan.round_id))
        log = membership.failures
        if failures := in_order((log.latest or log.before).values()):
            run.last_failure.CopyFrom(failure_message(failures[0], view))
        if self.origin.done() and not self.origin.exception():
            run.origin.CopyFrom(self.origin.result())
        return run
