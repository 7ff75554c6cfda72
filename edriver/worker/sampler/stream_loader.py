"""The loader of a stream: batches in the worker, from what the processes of a DataLoader read.

A pass through the DataLoader hands out one block and reads ahead for the next one. Requests go round among its
processes (lanes), so each lane's samples are held by one process. The last few batches of a block are requested after
the report, so that the workers' reports cross while the script still trains on them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Protocol

from torch.utils.data import DataLoader

from edriver.worker import context
from edriver.worker.backend import torch_groups
from edriver.worker.sampler.micro_batches import usual_shares
from edriver.worker.sampler.step_reading import StepReading, end_epoch
from edriver.worker.sampler.step_schedule import StepSchedule
from edriver.worker.sampler.stream_block import MAX_STEPS, Batch
from edriver.worker.sampler.stream_reader import NO_REQUEST, Reader, Reply, Request, ShardReading, merged
from edriver.worker.sampler.stream_schedule import EpochSchedule
from edriver.worker.sampler.stream_shards import Piece, ReadRange

logger = logging.getLogger("edriver.worker")

_REFUSED = {
    "sampler": "the stream decides which samples this worker has",
    "batch_sampler": "the stream decides which samples this worker has",
    "shuffle": "give shuffle to the ElasticStream: it shuffles shards",
    "in_order": "batches are handed out in order on all workers",
}
_PREFIX: Final = "edriver/stream"
"""Of the keys in the round's store."""


class Stream(Protocol):
    """The ElasticStream of a loader, as its user sees it."""

    def samples_done(self) -> tuple[int, int]:
        """The epoch, and the number of its samples that all workers together have done."""


class StreamLoader:
    """Batches of a stream: made by `ElasticStream.loader`.

    Attributes:
        stream: whose samples they have.
        batch_size: samples in a batch.
    """

    def __init__(
        self,
        dataset: ShardReading,
        stream: Stream,
        batch_size: int,
        begin: Callable[[], EpochSchedule],
        begin_steps: Callable[[int, Sequence[Sequence[int]]], StepSchedule],
        check: Callable[[EpochSchedule], None],
        collate: Callable[[list[Any]], Any],
        options: dict[str, Any],
    ) -> None:
        self.stream = stream
        self.batch_size = batch_size
        self._begin_steps = begin_steps
        for name, why in _REFUSED.items():
            if name in options:
                raise ValueError(f"ElasticStream.loader takes no {name}: {why}")
        self._begin = begin
        self._check = check
        self._collate = collate
        self._dataset = dataset
        self._lanes = max(1, options.get("num_workers", 0))
        self._kept: _Processes | None = None
        keeps = options.pop("persistent_workers", False)
        self._options = options
        processes = _Processes(dataset, options)  # or a mistake in the options would show in the first round alone
        if keeps:
            self._kept = processes

    def __len__(self) -> int:
        """Refuse.

        Raises:
            TypeError: always.
        """
        raise TypeError("the length of a stream is not known until it has been read: iterate its loader to the end")

    def __iter__(self) -> Iterator[Any]:
        """Batches of this worker, from the current position of the epoch on."""
        schedule = self._begin()
        processes = self._kept or _Processes(self._dataset, self._options)
        lanes = _Lanes(self._lanes)
        last = False
        while not last:
            last = schedule.finished
            yield from self._pass(schedule, lanes, processes)
        end_epoch(schedule, "a batch for each worker")

    def steps(self, micro_batches: int, rank: int, workers: int, replica_size: int = 1) -> StepReading:
        """Read micro-batches of steps, from the current position of the epoch on, in place of batches of each worker.

        Args:
            micro_batches: in each step.
            rank: this worker's.
            workers: in the round.
            replica_size: the number of workers that make every forward pass together.
        """
        shares = usual_shares(micro_batches, workers, replica_size)
        schedule = self._begin_steps(micro_batches, shares)
        processes = self._kept or _Processes(self._dataset, self._options)
        return StepReading(schedule, shares[rank], self._lanes, processes.answer, StoreAllGather, self._check)

    def _pass(self, schedule: EpochSchedule, lanes: _Lanes, processes: _Processes) -> Iterator[Any]:
        """Hand out the block and, unless it is the last one, read ahead for the next and agree on it."""
        last = schedule.finished
        batches = schedule.batches()
        ranges = [] if last else lanes.split(schedule.to_read())
        requests, answers = self._requests(batches, ranges, lanes.ahead(schedule.batch_size), schedule.readers())
        replies = processes.answer(requests)
        samples: list[Any] = []
        reports: list[Reply] = []
        exchange = None
        for parts_left in answers:
            reply = next(replies)
            if reply.held is not None:
                reports.append(reply)
                if len(reports) == self._lanes:
                    exchange = StoreAllGather(schedule.report(*merged(reports)))
            if parts_left is None:
                continue
            if parts_left or samples:
                samples += reply.batch
                if parts_left:
                    continue
            batch = self._collate(samples) if samples else reply.batch
            samples = []
            schedule.steps += 1
            yield batch
            self._check(schedule)
        if exchange is not None:
            lanes.note([reply.held or [] for reply in reports])
            schedule.agree(exchange.texts())

    def _requests(
        self,
        batches: Sequence[Batch],
        ranges: list[list[ReadRange]],
        ahead: int,
        readers: dict[int, Reader],
    ) -> tuple[list[Request], list[int | None]]:
        """The requests of a pass, and for each the parts of its batch that follow; None: it is for no batch."""
        requests: list[Request] = []
        answers: list[int | None] = []

        def ask(lane: int, answer: int | None, request: Request) -> None:
            while len(requests) % self._lanes != lane:
                requests.append(NO_REQUEST)
                answers.append(None)
            shards = {piece.shard for piece in request.pieces} | {part.shard for part in request.ranges}
            requests.append(request._replace(readers={shard: readers[shard] for shard in shards & readers.keys()}))
            answers.append(answer)

        def ask_for_reports(before: int) -> None:
            for lane in range(self._lanes):
                keep = [
                    piece for batch in batches[before:] for part in batch if part.lane == lane for piece in part.pieces
                ]
                ask(lane, None, NO_REQUEST._replace(ranges=ranges[lane], ahead=ahead, keep=keep))

        early = self._lanes if len(batches) > 2 * self._lanes else 0
        for number, batch in enumerate(batches):
            if early and ranges and number == len(batches) - early:
                ask_for_reports(number)
            reads = ranges and early <= number < len(batches) - early
            for at, part in enumerate(batch):
                request = NO_REQUEST._replace(pieces=part.pieces, collated=len(batch) == 1)
                if reads:
                    share = (number + 1 - early) / (len(batches) - 2 * early)
                    request = request._replace(ranges=ranges[part.lane], ahead=round(share * ahead))
                ask(part.lane, len(batch) - at - 1, request)
        if ranges and not early:
            ask_for_reports(len(batches))
        return requests, answers


class _Processes:
    """A DataLoader whose processes live as long as this object; each pass is an iteration of the DataLoader.

    Args:
        dataset: the dataset, which answers requests.
        options: options of the DataLoader.
    """

    def __init__(self, dataset: ShardReading, options: dict[str, Any]) -> None:
        self._requests: list[Request] = []
        self._loader: DataLoader[Reply] = DataLoader(
            dataset,
            batch_size=None,
            sampler=self._requests,
            collate_fn=_as_it_is,
            persistent_workers=options.get("num_workers", 0) > 0,
            **options,
        )

    def answer(self, requests: Sequence[Request]) -> Iterator[Reply]:
        """The answers, in order; what has not been answered yet of an earlier pass is dropped."""
        self._requests[:] = requests
        return iter(self._loader) if requests else iter(())


class _Lanes:
    """Assigns a worker's shards to its processes. An open shard stays with its process.

    Args:
        count: the number of processes.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._of_shard: dict[int, int] = {}
        self._begun: set[int] = set()
        self._steps = count

    def split(self, ranges: Sequence[ReadRange]) -> list[list[ReadRange]]:
        """Each lane's ranges."""
        shards = dict.fromkeys(part.shard for part in ranges)
        self._of_shard = {shard: lane for shard, lane in self._of_shard.items() if shard in shards}
        queues: list[list[int]] = [[] for _ in range(self._count)]
        for shard in shards:
            if shard in self._of_shard:
                queues[self._of_shard[shard]].append(shard)
        for shard in shards:
            if shard not in self._of_shard:
                min(queues, key=len).append(shard)
        for idle in queues:
            longest = max(queues, key=len)
            if not idle and len(longest) > 1 and longest[-1] not in self._begun:
                idle.append(longest.pop())
        self._of_shard = {shard: lane for lane, queue in enumerate(queues) for shard in queue}
        return [[part for part in ranges if self._of_shard[part.shard] == lane] for lane in range(self._count)]

    def ahead(self, batch_size: int) -> int:
        """The number of samples for each lane to hold: at first one batch, so that training begins soon."""
        return -(-self._steps // self._count) * batch_size

    def note(self, held: Sequence[Sequence[Piece]]) -> None:
        """These samples have been read."""
        self._begun = {piece.shard for pieces in held for piece in pieces}
        self._steps = min(2 * self._steps, max(MAX_STEPS, self._count))


def _as_it_is(reply: Any) -> Any:
    return reply


class StoreAllGather:
    """A text of each worker for all of them, through the round's store, beside the script's collectives.

    All workers make their exchanges in the same order.

    Args:
        text: this worker's.

    Raises:
        RuntimeError: the connection to the store broke.
    """

    def __init__(self, text: str) -> None:
        process = context.current
        self._place = process.place.assignment
        self._own = text
        self._number = process.counters.next(_PREFIX, self._place.round_id)
        if self._place.size > 1:
            torch_groups.default_store().set(self._key(self._number, self._place.rank), text)

    def texts(self) -> list[str]:
        """What all workers have given, in the order of their ranks; waits for them.

        Raises:
            RuntimeError: the connection to the store broke.
        """
        if self._place.size == 1:
            return [self._own]
        store = torch_groups.default_store()
        found = store.multi_get([self._key(self._number, rank) for rank in range(self._place.size)])
        # All have begun this exchange, so all have read what was given in the last one.
        store.delete_key(self._key(self._number - 1, self._place.rank))
        return [bytes(text).decode() for text in found]

    def _key(self, number: int, rank: int) -> str:
        return f"{_PREFIX}/{number}/{rank}"
