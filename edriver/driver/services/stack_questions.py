"""Asking the agents where the threads of workers stand, for those who have asked the driver.

All callers that ask for a worker while it is being asked, or within a second after, get the same answer: many may look
at one run, and each question costs the worker some hundred microseconds.

The questions come over the status service: the answer changes nothing, and shows no more than the traceback of a
failure, which its token shows as well. The driver asks an agent only over a connection that is there, at most once a
second for each worker.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from typing import Final

from edriver.text.phrases import some_of
from edriver.v1 import agent_pb2, stacks_pb2, status_pb2
from edriver.wire.conversion import timestamp

MAX_ANSWER_AGE: Final = 1.0
"""Seconds for which an answer is given to others, too."""

MAX_QUESTIONS: Final = 32
"""Workers that are asked at a time."""

ANSWER_BOUND: Final = 6.0
"""Seconds that an agent may take: it asks the worker twice, a second each."""

MAX_NAMED_WORKERS: Final = 8
"""Workers that are named where none of them is meant."""


class StackQuestions:
    """Where workers stand.

    Args:
        ask: sends a host's agent a question; returns whether that is possible.
        clock: seconds, monotonic.
    """

    def __init__(self, ask: Callable[[str, agent_pb2.ConnectResponse], bool], clock: Callable[[], float]) -> None:
        self._ask = ask
        self._clock = clock
        self._turn = asyncio.Semaphore(MAX_QUESTIONS)
        self._number = 0
        self._answers: dict[int, asyncio.Future[stacks_pb2.Stacks]] = {}  # by the question's number
        self._asking: dict[int, asyncio.Task[stacks_pb2.Stacks]] = {}  # by worker_id
        self._latest: dict[int, tuple[float, stacks_pb2.Stacks]] = {}

    async def of_all(
        self, workers: Iterable[status_pb2.WorkerStatus]
    ) -> AsyncIterator[tuple[status_pb2.WorkerStatus, stacks_pb2.Stacks]]:
        """Where these stand, in their order; they are asked at the same time."""
        now = self._clock()
        self._latest = {known: each for known, each in self._latest.items() if now - each[0] < MAX_ANSWER_AGE}
        asked = [(worker, self._begin(worker)) for worker in workers]
        for worker, answer in asked:
            yield worker, await asyncio.shield(answer)  # others may wait for it

    def answered(self, taken: agent_pb2.WorkerStacksTaken) -> None:
        """An agent has answered; too late for those who asked before."""
        if (answer := self._answers.get(taken.number)) is not None and not answer.done():
            answer.set_result(taken.stacks)

    def _begin(self, worker: status_pb2.WorkerStatus) -> asyncio.Future[stacks_pb2.Stacks]:
        worker_id = worker.worker_id
        if (task := self._asking.get(worker_id)) is not None:
            return task
        if (latest := self._latest.get(worker_id)) is not None:
            known = asyncio.get_running_loop().create_future()
            known.set_result(latest[1])
            return known
        task = self._asking[worker_id] = asyncio.create_task(self._stacks_of(worker_id, worker.host))
        task.add_done_callback(lambda _: self._asking.pop(worker_id))
        return task

    async def _stacks_of(self, worker_id: int, host: str) -> stacks_pb2.Stacks:
        silent = stacks_pb2.Stacks(obstacle=stacks_pb2.STACK_OBSTACLE_AGENT_SILENT)
        async with self._turn:
            self._number += 1
            number = self._number
            question = agent_pb2.TakeWorkerStacks(worker_id=worker_id, number=number)
            answer = self._answers[number] = asyncio.get_running_loop().create_future()
            try:
                if not self._ask(host, agent_pb2.ConnectResponse(take_worker_stacks=question)):
                    return silent
                found: stacks_pb2.Stacks = await asyncio.wait_for(answer, ANSWER_BOUND)
            except TimeoutError:
                return silent
            finally:
                del self._answers[number]
        self._latest[worker_id] = (self._clock(), found)
        return found


def is_meant(request: status_pb2.ReadStacksRequest) -> Callable[[status_pb2.WorkerStatus], bool]:
    """Whether a worker is one of those that are asked for."""

    def meant(worker: status_pb2.WorkerStatus) -> bool:
        has_rank = worker.HasField("rank") and worker.rank == request.rank and worker.state not in _WITHOUT_RANK
        return (
            (not request.HasField("rank") or has_rank)
            and (not request.host or worker.host == request.host)
            and (not request.HasField("slot") or worker.slot == request.slot)
            and (not request.worker_id or worker.worker_id == request.worker_id)
        )

    return meant


_WITHOUT_RANK: Final = (status_pb2.WORKER_STATE_STOPPING, status_pb2.WORKER_STATE_GONE)
"""In these a worker's rank is another one's."""


def place_of(worker: status_pb2.WorkerStatus) -> tuple[bool, int, int]:
    """By which workers are put in order: by rank, those without one last."""
    return not worker.HasField("rank"), worker.rank, worker.worker_id


def names_of(workers: Collection[status_pb2.WorkerStatus]) -> str:
    """Those there are, for a message."""
    if not workers:
        return "the run has no workers now"
    names = [
        f"{worker.host}:{worker.slot}" + (f" (rank {worker.rank})" if worker.HasField("rank") else "")
        for worker in sorted(workers, key=place_of)
    ]
    return f"the run has {some_of(names, MAX_NAMED_WORKERS)}"


def stacks_message(
    worker: status_pb2.WorkerStatus, taken: stacks_pb2.Stacks, now: float
) -> status_pb2.ReadStacksResponse:
    """As it is sent."""
    return status_pb2.ReadStacksResponse(
        worker_id=worker.worker_id,
        rank=worker.rank if worker.HasField("rank") else None,
        host=worker.host,
        slot=worker.slot,
        pid=worker.pid,
        time=timestamp(now),
        stacks=taken,
    )
