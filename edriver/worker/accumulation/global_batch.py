"""GlobalBatch: steps of as many samples whatever the number of workers."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader

from edriver.model.ids import Version
from edriver.model.plan import Assignment
from edriver.worker import context
from edriver.worker.accumulation import fixed_order
from edriver.worker.accumulation.gradients import Gradients, Look, Reduced
from edriver.worker.accumulation.running_statistics import RunningStatistics
from edriver.worker.accumulation.speed import Speed
from edriver.worker.accumulation.unfinished import NOTHING_DONE, Resumption, Source, Unfinished, UnfinishedSteps
from edriver.worker.errors import PeerLostError
from edriver.worker.group.round_mesh import mesh
from edriver.worker.sampler.elastic_sampler import CHUNK_INDICES, ElasticSampler
from edriver.worker.sampler.micro_batches import FILLER, EpochSteps, deal
from edriver.worker.sampler.stream_loader import StreamLoader


class GlobalBatch:
    """Takes each optimizer step with the same samples, whatever the number of workers.

    A step consists of `size` samples of the epoch's order, cut into micro-batches of the loader's batch size. The
    workers of the round share them, and accumulate gradients; the last of a worker's micro-batches reduces them. In a
    loop, inside the training function:

        steps = edriver.GlobalBatch(loader, model, size=256)
        for step in steps:
            optimizer.zero_grad()
            for inputs, labels in step:              # this worker's micro-batches
                loss = criterion(model(inputs), labels)
                step.scale(loss).backward()
            optimizer.step()
            state.commit()

    A step is recorded in the sampler or the stream: do not call `record_batch`. When a worker is lost while all others
    are still accumulating, these keep what they have, and share the micro-batches that the lost one had computed.

    Args:
        loader: has an ElasticSampler, or is an ElasticStream's, and has micro-batches as `batch_size`. With `drop_last`
            the epoch's last step is left out if it has fewer samples than others.
        model: the model as it is trained: in DistributedDataParallel, or sharded by fully_shard; where an
            hvd.DistributedOptimizer reduces gradients, that; or several of these.
        size: the number of samples in a step, a multiple of the loader's batch size.
        bitwise: whether to sum gradients in the order of the micro-batches, so that a run has the same bits with any
            number of workers, as far as the script's computations have. For DistributedDataParallel alone; takes
            memory for the gradients of each of a worker's micro-batches.
        shares: "even": all workers compute equally many micro-batches of a step, as far as possible; "speed": as many
            as make the step shortest, by the time that each has taken for a micro-batch. The samples are the same. Not
            with an ElasticStream.

    Raises:
        TypeError: the loader has neither an ElasticSampler nor an ElasticStream, or no batch size; a model is not
            wrapped; or several workers of a sharded model compute with the same samples (tensor parallelism).
            Or the model has a SyncBatchNorm.
        ValueError: `size` is not a multiple of the loader's batch size, or `shares` is neither, or "speed" with an
            ElasticStream.
    """

    def __init__(
        self,
        loader: DataLoader[Any] | StreamLoader,
        model: nn.Module | Reduced | Iterable[nn.Module | Reduced],
        size: int,
        *,
        bitwise: bool = False,
        shares: Literal["even", "speed"] = "even",
    ) -> None:
        micro_batch_size = loader.batch_size
        sampler = None if isinstance(loader, StreamLoader) else loader.sampler
        if micro_batch_size is None or not isinstance(sampler, ElasticSampler | None):
            raise TypeError(
                "GlobalBatch takes a loader that has an edriver.ElasticSampler and a batch size, as in "
                "DataLoader(dataset, batch_size=16, sampler=state.sampler), or that of an edriver.ElasticStream, as in "
                "stream.loader(batch_size=16); this one has "
                + ("a batch size of None" if micro_batch_size is None else f"a {type(sampler).__name__}")
            )
        if size < 1 or size % micro_batch_size:
            raise ValueError(
                f"a step of {size} samples cannot be cut into micro-batches of {micro_batch_size}, the loader's batch "
                f"size: give a multiple, such as size={max(1, round(size / micro_batch_size)) * micro_batch_size}"
            )
        if shares not in ("even", "speed"):
            raise ValueError(f'shares={shares!r}: give "even" or "speed"')
        if shares == "speed" and isinstance(loader, StreamLoader):
            raise ValueError(
                'shares="speed" would move shards of the stream between workers, and each would be read again from its '
                'start: leave shares at "even", or train on an edriver.ElasticSampler'
            )
        self._by_speed = shares == "speed"
        self._loader, self._size, self._micro_batch_size = loader, size, micro_batch_size
        self._bitwise = bitwise
        trained = model if isinstance(model, Iterable) and not isinstance(model, nn.Module) else [model]
        self._gradients = Gradients(trained, with_others=context.assignment().size > 1)
        self._statistics = RunningStatistics(self._gradients.models)
        if self._gradients.sharded and context.current.rounds is not None:
            refuse_dimensions(mesh().mesh_dim_names or ())
        if bitwise and not self._gradients.in_wrappers:
            raise TypeError(
                "bitwise=True takes models in DistributedDataParallel: fully_shard and hvd.DistributedOptimizer sum "
                "gradients in an order of their own"
            )

    def __len__(self) -> int:
        """The number of steps that are left of the epoch.

        Raises:
            TypeError: the loader is that of an ElasticStream, whose length is not known.
        """
        if isinstance(self._loader, StreamLoader):
            return len(self._loader)
        return len(self._left(self._loader))

    def __iter__(self) -> Iterator[Step]:
        """The steps that are left of the epoch.

        Raises:
            RuntimeError: a step was not completed before the next, or a loss was not scaled.
            PeerLostError: another worker is lost.
        """
        place = context.assignment()
        together = place.size if place.sharding is not None else place.replica_size
        loader = self._loader
        if isinstance(loader, StreamLoader):
            steps = self._streamed(loader, place, together)
        else:
            steps = self._sampled(loader, place, together)
        for step in steps:
            yield step
            step.check_complete()

    def _sampled(self, loader: DataLoader[Any], place: Assignment, together: int) -> Iterator[Step]:
        """The steps of a loader with a sampler."""
        epoch, sampler = self._left(loader), loader.sampler
        assert isinstance(sampler, ElasticSampler)
        if not len(epoch):
            return
        resumption = context.current.part(UnfinishedSteps).taken_up(sampler, epoch.micro_batches(0), self._gradients)

        def step_time(seconds: Sequence[float], dealt_by: Sequence[float] | None) -> float:
            dealt = epoch.shares(0, place.size, together, (), dealt_by)
            return max(taken * len(share) for taken, share in zip(seconds, dealt, strict=True))

        read_ahead = loader.num_workers * (loader.prefetch_factor or 0)
        speed = Speed(place.size if self._by_speed else 1, read_ahead, self._gradients.device, step_time)

        def shares(number: int) -> list[list[int]]:
            return epoch.shares(number, place.size, together, () if number else resumption.numbers, speed.at(number))

        def places() -> Iterator[list[int]]:
            some: list[int] = []
            for number in range(len(epoch)):
                some += epoch.places(number, shares(number)[place.rank])
                if self._by_speed or len(some) >= CHUNK_INDICES:
                    yield some
                    some = []
            yield some

        sampler.deal(places)
        batches = iter(loader)
        for number in range(len(epoch)):
            sizes = epoch.sizes(number)
            record = functools.partial(sampler.record_step, sum(sizes))
            work = Work(number, sampler, sizes, shares(number), batches, record)
            yield Step(
                work,
                NOTHING_DONE if number else resumption,
                self._gradients,
                self._statistics,
                self._bitwise,
                place,
                speed,
            )

    def _streamed(self, loader: StreamLoader, place: Assignment, together: int) -> Iterator[Step]:
        """The steps of a stream's loader."""
        micro_batches = self._size // self._micro_batch_size
        reading = loader.steps(micro_batches, place.rank, place.size, together)
        speed = Speed(1, 0, self._gradients.device, lambda *_: 0.0)
        for number in itertools.count():
            sizes = reading.sizes()
            if not sizes:
                return
            taken_up = NOTHING_DONE
            if number == 0:
                unfinished = context.current.part(UnfinishedSteps)
                taken_up = unfinished.taken_up(loader.stream, len(sizes), self._gradients)
            shares = deal([n for n in range(len(sizes)) if n not in taken_up.numbers], place.size, together)
            batches = reading.batches(shares[place.rank])
            work = Work(number, loader.stream, sizes, shares, batches, reading.record)
            yield Step(work, taken_up, self._gradients, self._statistics, self._bitwise, place, speed)

    def _left(self, loader: DataLoader[Any]) -> EpochSteps:
        assert isinstance(loader.sampler, ElasticSampler)
        done, length = loader.sampler.progress()
        return EpochSteps(done, length, self._size, self._micro_batch_size, loader.drop_last)


def refuse_dimensions(names: Sequence[str]) -> None:
    """Refuse a mesh in which several workers compute with the same samples.

    Raises:
        TypeError: it has dimensions other than those of data parallelism.
    """
    if others := [name for name in names if name not in ("replicate", "shard")]:
        raise TypeError(
            f"GlobalBatch gives each worker other samples, and workers along {', '.join(others)} of this mesh compute "
            "with the same: accumulate gradients in the script, with edriver.accumulation_weights"
        )


@dataclass(frozen=True)
class Work:
    """What there is to compute in a step.

    Attributes:
        number: of the step, from 0 in each round and epoch.
        source: the sampler or stream whose samples they are.
        sizes: the number of samples of each micro-batch.
        shares: for each rank the micro-batches to compute, perhaps with fillers.
        batches: those of this worker's share, and perhaps of later steps.
        record: counts the step's samples as done.
    """

    number: int
    source: Source
    sizes: Sequence[int]
    shares: Sequence[Sequence[int]]
    batches: Iterator[Any]
    record: Callable[[], None]


class Step:
    """One optimizer step: iterate it for this worker's micro-batches. See GlobalBatch, which makes it.

    Attributes:
        micro_batches: the number of micro-batches of all workers together.
        samples: the number of samples in them.
        is_last: whether the current micro-batch is this worker's last one of the step.
        number: that of the current micro-batch among those of the step; None: it is a filler, or there is none.
        done: the numbers of those that this worker has computed, or had when the step was interrupted.
        micro_batch_samples: the number of samples in the current micro-batch; 0 for a filler.
    """

    def __init__(
        self,
        work: Work,
        taken_up: Resumption,
        gradients: Gradients,
        statistics: RunningStatistics,
        bitwise: bool,
        place: Assignment,
        speed: Speed,
    ) -> None:
        self.micro_batches = len(work.sizes)
        self.samples = sum(work.sizes)
        self._work, self._taken_up, self._bitwise = work, taken_up, bitwise
        self._gradients, self._statistics = gradients, statistics
        self._place, self._speed = place, speed
        own = taken_up.own
        self.done = list(own.micro_batches) if own else []
        self._vectors = dict(own.vectors) if own else {}
        self._losses = dict(own.losses) if own else {}
        self._weights = dict(own.weights) if own else {}
        self._moved = dict(own.moved) if own else {}
        self._held = taken_up.done or [[] for _ in work.shares]
        self._finishes = gradients.sharded and gradients.survive_losses and place.replica_size < place.size
        self._accumulated: Look | None = None  # what gradients were with those of all that is done, and nothing else
        # Losses are multiplied by a power of two, so that gradients of few bits are rounded alike at any size.
        self._factor = 2.0 ** math.floor(math.log2(place.size))
        self._correction = 1.0
        self._current: int | None = None
        self.micro_batch_samples = 0
        self.is_last = self._scaled = self._weighted = self._complete = False

    def __iter__(self) -> Iterator[Any]:
        """This worker's micro-batches, as the loader yields them. The last one's backward pass reduces gradients."""
        work = self._work
        share = work.shares[self._place.rank]
        taken_up, self._taken_up = self._taken_up, NOTHING_DONE
        if not self._bitwise:
            taken_up.into(self._gradients, self._factor)
        self._note_accumulated()
        context.current.micro_batch.keep_with(self._interrupted)
        self._statistics.begin()
        self._speed.begin(work.number)
        for at, number in enumerate(share):
            self.is_last = at == len(share) - 1
            if self.is_last:
                self._speed.before_last(work.number, at)
            batch = next(work.batches)
            self._check_peers()
            self._gradients.reduce_in_backward(self.is_last and not self._bitwise)
            if self._finishes and not self.is_last:
                context.current.micro_batch.open()
            self._current, self._scaled = number, False
            self.micro_batch_samples = 0 if number == FILLER else self._work.sizes[number]
            yield batch
            self.computed()

    @property
    def number(self) -> int | None:
        """See Step."""
        return None if self._current == FILLER else self._current

    def computed(self) -> None:
        """Note that the backward pass of the current micro-batch has ended. The loop over the step does it before the
        next one; a loop whose body also calls `optimizer.step` does it before that. A collective after the last one.

        Raises:
            RuntimeError: the loss was not scaled.
            PeerLostError: another worker is lost.
        """
        if (number := self._current) is None:
            return
        if not self._scaled:
            raise RuntimeError(
                "a micro-batch has been computed without step.scale: write step.scale(loss).backward(), so that "
                "each sample counts the same, whatever the number of workers"
            )
        self._note_done(number)
        context.current.micro_batch.end()
        if self.is_last:
            self._finish()
        else:
            self._note_accumulated()
            self._check_peers()

    def scale(self, loss: torch.Tensor, weight: float | torch.Tensor | None = None) -> torch.Tensor:
        """Multiply the mean loss of the current micro-batch so that the step's gradient is that of the mean loss of all
        its samples. Call it once for each micro-batch, also with the loss of a filler: a micro-batch that a worker
        computes only to take part in the step, which counts 0.

        Args:
            loss: the mean over the samples of the micro-batch.
            weight: what the loss is a mean over, if that is not the samples: the number of labels that count, say, or
                their share of all labels. Then the step's gradient is that of the mean with these weights. At the end
                of such a step a number is reduced, and the gradients are multiplied by it.

        Returns:
            a scalar to call `backward` on, or to hand to GradScaler.scale.

        Raises:
            RuntimeError: no micro-batch is being computed, or this one's loss has been scaled already.
        """
        if self._current is None or self._scaled:
            raise RuntimeError(
                "step.scale is called once for each micro-batch, inside the loop over the step: add losses up before"
            )
        self._scaled, self._accumulated = True, None  # a backward pass follows, and may be left in the middle
        number = self._current
        self._weighted = self._weighted or weight is not None
        share: float | torch.Tensor = 0.0
        if number != FILLER:
            share = self.micro_batch_samples / self.samples
            if weight is not None:
                self._weights[number] = torch.as_tensor(weight, dtype=torch.float64, device=loss.device).detach()
                share = self._weights[number] / self.micro_batches
            self._losses[number] = loss.detach(), share
        factor = share if self._bitwise else share * self._factor
        return loss * (factor.to(loss.dtype) if isinstance(factor, torch.Tensor) else factor)

    def loss(self) -> float:
        """The mean loss of the step's samples, over all workers, with their weights. A collective: call it on all
        workers, after the loop over the step and before `optimizer.step()`.

        Raises:
            RuntimeError: the step is not complete.
        """
        if not self._complete:
            raise RuntimeError("step.loss() is known after the loop over the step's micro-batches")
        return self._sum_of({number: loss * share for number, (loss, share) in self._losses.items()}) * self._correction

    def _sum_of(self, values: Mapping[int, torch.Tensor]) -> float:
        """The sum of a value of each micro-batch, on all workers, in their order: the same whoever has which."""
        row = torch.zeros(self.micro_batches, dtype=torch.float64, device=self._gradients.device)
        for number, value in values.items():
            row[number] = value
        if self._place.size > 1 and dist.is_initialized():
            dist.all_reduce(row)
        return math.fsum(row.tolist())

    def check_complete(self) -> None:
        """Raise RuntimeError if this worker's micro-batches have not all been computed."""
        if not self._complete:
            raise RuntimeError(
                "a step was left before its last micro-batch: iterate all of it, as other workers do, and let a "
                "micro-batch that has nothing to learn from count with weight=0"
            )

    def _note_done(self, number: int) -> None:
        self._current = None
        gradients = self._gradients.take() if self._bitwise else []
        if number == FILLER:
            self._statistics.go_back()
            return
        self.done.append(number)
        if self._statistics:
            self._moved[number] = self._statistics.take()
        if self._bitwise:
            self._vectors[number] = fixed_order.Layout(self._gradients.parameters()).vectors(gradients)

    def _check_peers(self) -> None:
        """Between two micro-batches: see whether another worker is lost, and keep what this one has."""
        rounds = context.current.rounds
        if rounds is None:
            return
        try:
            rounds.check()
        except PeerLostError:
            self._keep(rounds.version)
            raise

    def _note_accumulated(self) -> None:
        # A sharded model's forward passes communicate, and break off. Those of others seldom do, and a look costs
        # microseconds.
        self._accumulated = self._gradients.look() if self._gradients.sharded else None

    def _interrupted(self) -> None:
        """Another worker is lost: keep what this one has, unless a backward pass has begun, or the script, which may
        have caught the error on its way, has dropped gradients.
        """
        look, rounds = self._accumulated, context.current.rounds
        if look is not None and rounds is not None and self._gradients.unchanged_since(look):
            self._keep(rounds.version)

    def _keep(self, version: Version) -> None:
        """Keep for the next round what this worker has of the step, which follows the boundary of this version."""
        self._accumulated = None
        if not self.done or not self._gradients.survive_losses:
            return
        gradients = self._gradients.take()
        unfinished = Unfinished(
            version,
            self._work.source.samples_done(),
            self._factor,
            self.done,
            gradients,
            self._vectors,
            self._losses,
            self._weights,
            self._moved,
        )
        context.current.part(UnfinishedSteps).keep(self._work.source, unfinished)

    def _reduce(self) -> None:
        """Put the sums of all workers in place: of running statistics, and of gradients with a fixed order."""
        statistics = gradients = None
        try:
            if self._statistics:
                statistics = self._summed_statistics()
            if self._bitwise:
                layout = fixed_order.Layout(self._gradients.parameters())
                gradients = layout.gradients(fixed_order.summed(self._vectors, layout.zeros(), self._holders()))
        except RuntimeError:  # another worker is lost, and with a fixed order nothing of what this one has is changed
            if self._bitwise and (rounds := context.current.rounds) is not None:
                self._keep(rounds.version)
            raise
        if statistics is not None:
            self._statistics.put(statistics, self.micro_batches)
        if gradients is not None:
            self._gradients.put(gradients)

    def _holders(self) -> list[list[int]]:
        """For each rank the micro-batches whose gradients it has."""
        dealt = zip(self._held, self._work.shares, strict=True)
        return [[*held, *(number for number in share if number != FILLER)] for held, share in dealt]

    def _summed_statistics(self) -> torch.Tensor:
        rows = self._statistics.sum_of(self._moved, self.micro_batches, apart=self._bitwise)
        if self._place.size > 1 and dist.is_initialized():
            dist.all_reduce(rows)
        return rows

    def _finish(self) -> None:
        """All of this worker's micro-batches are computed."""
        self._reduce()
        if self._weighted:
            weights = self._sum_of(self._weights)
            self._correction = self.micro_batches / weights if weights else 0.0
        self._gradients.scale_reduced(
            self._correction if self._bitwise else self._correction * self._place.size / self._factor
        )
        self._speed.end(self._work.number)
        self._gradients.reduce_in_backward(True)
        self._work.record()
        self._complete = True
