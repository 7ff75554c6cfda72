"""The micro-batches of a stream's steps: a worker's share of each, from what the processes of its loader read.

A pass hands out the rest of a block and reads ahead for the next one, as in stream_loader.py. Each reader is in one of
the processes, and stays there.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from edriver.worker import context
from edriver.worker.sampler.micro_batches import FILLER
from edriver.worker.sampler.step_schedule import StepSchedule
from edriver.worker.sampler.stream_plan import samples_in
from edriver.worker.sampler.stream_reader import NO_REQUEST, Reply, Request, merged
from edriver.worker.sampler.stream_schedule import EpochSchedule
from edriver.worker.sampler.stream_shards import Piece, ReadRange

logger = logging.getLogger("edriver.worker")


class Exchange(Protocol):
    """What each worker has given for all of them."""

    def texts(self) -> list[str]:
        """In the order of their ranks; waits for them."""


class StepReading:
    """Reads this worker's share of each step: made by `StreamLoader.steps`.

    Args:
        schedule: the course of the epoch.
        share: the numbers of the micro-batches that this worker usually computes; at least one.
        processes: the number of the loader's processes, at least 1,
        answer: and what they answer to requests, which go round among them.
        gather: gives a report to all workers.
        check: raises RuntimeError if this iteration is over.
    """

    def __init__(
        self,
        schedule: StepSchedule,
        share: Sequence[int],
        processes: int,
        answer: Callable[[Sequence[Request]], Iterator[Reply]],
        gather: Callable[[str], Exchange],
        check: Callable[[EpochSchedule], None],
    ) -> None:
        self._schedule = schedule
        self._share = share
        self._processes = processes
        self._process_of = {reader: at % processes for at, reader in enumerate(share)}
        self._answer, self._gather, self._check = answer, gather, check
        self._pass: Iterator[Any] | None = None

    def sizes(self) -> list[int]:
        """The number of samples of each micro-batch of the next step; empty: the epoch is over. A collective.

        Raises:
            RuntimeError: another iteration of the stream's loader has begun, or the connection to the store broke.
            ValueError: the workers disagree about the stream, or a shard has other samples than before.
        """
        schedule = self._schedule
        self._check(schedule)
        while schedule.steps == schedule.block.steps:
            if schedule.finished:
                end_epoch(schedule, "a step has")
                return []
            for _ in self._pass or self._read(()):
                raise AssertionError("a batch was not handed out")
            self._pass = None
        return [samples_in(pieces) for pieces in schedule.micro_batches(schedule.steps)]

    def batches(self, share: Sequence[int]) -> Iterator[Any]:
        """The batches of these micro-batches of the next step.

        Args:
            share: only in the first step that this object reads another one than the usual share of so many. FILLER:
                any batch.
        """
        if self._pass is None:
            self._pass = self._read(share)
        spare = None
        for at, number in enumerate(share):
            self._check(self._schedule)
            if at and number == FILLER:
                yield copy.deepcopy(spare)
                continue
            batch = next(self._pass)
            if FILLER in share[at + 1 :]:
                spare = copy.deepcopy(batch)
            yield batch

    def record(self) -> None:
        """Count the next step as done."""
        self._schedule.steps += 1

    def _read(self, share: Sequence[int]) -> Iterator[Any]:
        """A pass: the batches of this share of the next step, and of the usual ones of the block's others."""
        schedule = self._schedule
        requests, answers = self._requests(share)
        replies = self._answer(requests)
        reports: list[Reply] = []
        exchange = None
        for is_batch in answers:
            reply = next(replies)
            if reply.held is not None:
                reports.append(reply)
                if len(reports) == len(self._share):
                    exchange = self._gather(schedule.report(*merged(reports)))
            if is_batch:
                yield reply.batch
        if exchange is not None:
            schedule.agree(exchange.texts())

    def _requests(self, share: Sequence[int]) -> tuple[list[Request], list[bool]]:
        """The requests of a pass, and for each whether a batch is the answer."""
        schedule = self._schedule
        steps = [schedule.micro_batches(step) for step in range(schedule.steps, schedule.block.steps)]
        next_ranges = {reader: schedule.ranges(reader) for reader in self._share}
        requests: list[Request] = []
        answers: list[bool] = []

        def ask(process: int, is_batch: bool, request: Request) -> None:
            while len(requests) % self._processes != process:
                requests.append(NO_REQUEST)
                answers.append(False)
            shards = {part.shard for part in (*request.pieces, *(request.keep or ()), *request.ranges)}
            known = schedule.readers()
            requests.append(request._replace(readers={shard: known[shard] for shard in shards & known.keys()}))
            answers.append(is_batch)

        def ask_for_reports(later: Sequence[list[list[Piece]]]) -> None:
            ahead = schedule.ahead * schedule.batch_size
            for reader, process in self._process_of.items():
                present = [other for other, there in self._process_of.items() if there == process]
                keep = [piece for step in later for piece in step[reader]]
                request = NO_REQUEST._replace(ranges=next_ranges[reader], ahead=ahead, keep=keep)
                ask(process, False, request._replace(reader=reader, present=present))

        def ask_for_batch(number: int, at: int) -> None:
            request = NO_REQUEST._replace(pieces=steps[at][number], collated=True, reader=None)
            if number not in self._process_of:
                ask(number % self._processes, True, request)
                return
            left = [piece for step in steps[at + 1 :] for piece in step[number]]
            ahead = schedule.ahead * schedule.batch_size * min(at + 1, len(steps) - 1) // max(1, len(steps) - 1)
            ranges = [*(ReadRange(*piece) for piece in left), *(next_ranges[number] if ahead else [])]
            request = request._replace(ranges=ranges, ahead=samples_in(left) + ahead, reader=number)
            ask(self._process_of[number], True, request)

        # The reports are asked for before the last step, so that they cross while the script still trains on it.
        early = len(steps) > 1 and not schedule.finished
        for at, step in enumerate(steps):
            if early and at == len(steps) - 1:
                ask_for_reports(steps[at:])
            for number in self._share if at else self._of_a_batch_each(share, len(step)):
                ask_for_batch(number, at)
        if not early and not schedule.finished:
            ask_for_reports([])
        return requests, answers

    def _of_a_batch_each(self, share: Sequence[int], micro_batches: int) -> list[int]:
        """The micro-batches of a share, or any if these are fillers alone."""
        own = self._share[0]
        return [n for n in share if n != FILLER] or [own if own < micro_batches else 0]


def end_epoch(schedule: EpochSchedule, least: str) -> None:
    """Note that all batches were yielded, and warn of samples that are left out.

    Args:
        schedule: the course of the epoch.
        least: what these are too few for.
    """
    schedule.exhausted = True
    if schedule.dropped and context.assignment().rank == 0:
        logger.warning(
            "%d samples at the end of the epoch are left out, as drop_last requests: fewer than %s",
            schedule.dropped,
            least,
        )
