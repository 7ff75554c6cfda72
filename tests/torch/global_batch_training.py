"""Training scripts with GlobalBatch, as workers run them (elastic_world.py)."""

from __future__ import annotations

import dataclasses
import functools
import math
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import edriver
import edriver.horovod as hvd
from edriver.model.ids import RoundId
from edriver.model.plan import SINGLE_WORKER
from edriver.worker import context
from edriver.worker.accumulation import global_batch
from edriver.worker.accumulation.speed import Speed
from edriver.worker.backend.gloo.cutting import Cut
from edriver.worker.group.round_group import RoundGroup
from edriver.worker.rounds import severing
from edriver.worker.rounds.worker_rounds import WorkerRounds
from tests.torch.elastic_world import Fate
from tests.waiting import until

STEPS = 10
SAMPLES = 234
"""Of an epoch: four steps of SIZE, then one of 11 micro-batches, the last of which has two samples."""

MICRO_BATCH = 4
SIZE = 48
"""Samples in a step: 12 micro-batches."""


SHARDS = [50, 3, 41, 0, 70, 12, 30, 1, 27]
"""Lengths of the shards of an epoch that is streamed, SAMPLES in all: fewer than a step has micro-batches."""


class Numbered(Dataset[tuple[int, Tensor, Tensor]]):
    """Made-up samples, each with its number."""

    def __init__(self, length: int = SAMPLES) -> None:
        generator = torch.Generator().manual_seed(1)
        self._inputs = torch.randn(length, 6, generator=generator, dtype=torch.float64)
        self._labels = torch.randint(0, 3, (length,), generator=generator)

    def __len__(self) -> int:
        return len(self._inputs)

    def __getitem__(self, index: int) -> tuple[int, Tensor, Tensor]:
        return index, self._inputs[index], self._labels[index]


def read(shard: int) -> Iterator[tuple[int, Tensor, Tensor]]:
    """The samples of one of SHARDS, in an order of their own."""
    first = sum(SHARDS[:shard])
    return (Numbered()[index] for index in reversed(range(first, first + SHARDS[shard])))


@dataclasses.dataclass(frozen=True)
class Trained:
    """What a worker ends with.

    Attributes:
        parameters: and buffers and the optimizer's state, in one vector.
        computed: for each step, the samples of each micro-batch that this worker has computed.
        losses: the step's losses, as this worker knows them.
    """

    parameters: list[float]
    computed: list[tuple[int, list[int]]]
    losses: dict[int, float]


@dataclasses.dataclass(frozen=True)
class Kind:
    """How a script trains.

    Attributes:
        bitwise: see GlobalBatch.
        ignored: whether every third label does not count.
        dtype: of the model.
        clipped: whether gradients are clipped.
        mixed: whether it computes in bfloat16 under autocast, with a GradScaler.
        paces: for each rank, the seconds that a micro-batch takes by a made-up clock, where shares follow speed.
        length: samples in an epoch,
        steps: and how many steps are made.
        workers: of the data loader.
        streamed: whether samples come from an ElasticStream.
        normed: whether the model normalizes its batches: with running statistics, by a momentum and by a mean of all.
        size: of a step.
        lost_at: of the first round the step, and each worker's number of the micro-batch, after which all but one that
            is about to die wait until they know of that; None: they wait nowhere.
    """

    bitwise: bool = False
    ignored: bool = False
    dtype: torch.dtype = torch.float64
    clipped: bool = False
    mixed: bool = False
    paces: tuple[float, ...] = ()
    length: int = SAMPLES
    steps: int = STEPS
    workers: int = 0
    streamed: bool = False
    normed: bool = False
    size: int = SIZE
    lost_at: tuple[int, int] | None = None

    def __call__(self, fate: Fate) -> Trained:
        """The script."""
        now = 0.0
        if self.workers:  # else each of the loader's processes imports torch anew
            multiprocessing.set_forkserver_preload([__name__])
        vars(global_batch)["Speed"] = functools.partial(Speed, clock=lambda: now)
        torch.manual_seed(3)
        inner = nn.Sequential(nn.Linear(6, 16))
        if self.normed:  # without a bias in front, whose gradient would be 0, and so nothing but rounding
            inner = nn.Sequential(nn.Linear(6, 16, bias=False), nn.BatchNorm1d(16), nn.Tanh())
            inner += nn.Sequential(nn.Linear(16, 16, bias=False), nn.BatchNorm1d(16, momentum=None))
        model = nn.Sequential(*inner, nn.Tanh(), nn.Linear(16, 3)).to(self.dtype)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler("cpu", enabled=self.mixed, init_scale=256.0)
        source: edriver.ElasticStream | edriver.ElasticSampler
        if self.streamed:
            source = stream = edriver.ElasticStream(range(len(SHARDS)), read, seed=5)
            loader: Any = stream.loader(MICRO_BATCH, num_workers=self.workers)
        else:
            source = edriver.ElasticSampler(range(self.length), seed=5)
            loader = DataLoader(Numbered(self.length), MICRO_BATCH, sampler=source, num_workers=self.workers)
        state = edriver.TorchState(model, optimizer, scaler=scaler, source=source, epoch=0, step=0)
        computed: list[tuple[int, list[int]]] = []
        losses: dict[int, float] = {}

        @edriver.run
        def train(state: Any) -> None:
            nonlocal now
            wrapped = DistributedDataParallel(model, init_sync=False) if edriver.size() > 1 else model
            shares: Any = "speed" if self.paces else "even"
            while state.step < self.steps:
                source.set_epoch(state.epoch)
                for step in edriver.GlobalBatch(loader, wrapped, size=self.size, bitwise=self.bitwise, shares=shares):
                    fate.before(state.step)
                    optimizer.zero_grad()
                    for at, (numbers, inputs, labels) in enumerate(step):
                        fate.meets(state.step, f"micro-batch {at}")
                        computed.append((state.step, numbers.tolist()))
                        now += self.paces[edriver.rank()] if self.paces else 0.0
                        if self.ignored:
                            labels = torch.where(numbers % 3 == 0, -100, labels)
                        with torch.autocast("cpu", torch.bfloat16, enabled=self.mixed):
                            scores = wrapped(inputs.to(self.dtype))
                            loss = nn.functional.cross_entropy(scores, labels, reduction="sum")
                        count = (labels != -100).sum()
                        scaled = step.scale(loss / count.clamp(min=1), count if self.ignored else None)
                        torch.autograd.backward(scaler.scale(scaled))
                        dies = fate.is_to_meet(state.step, f"micro-batch {at + 1}")
                        first_round = context.assignment().round_id == RoundId(1, 1)
                        if first_round and self.lost_at == (state.step, at) and not dies:
                            rounds = context.current.rounds
                            assert isinstance(rounds, WorkerRounds)
                            until(functools.partial(getattr, rounds, "abort_cause"), every=0.01)
                    fate.meets(state.step, "reduced")
                    losses[state.step] = step.loss()
                    if self.clipped:
                        scaler.unscale_(optimizer)
                        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                    scaler.step(optimizer)
                    scaler.update()
                    state.step += 1
                    state.check_host_updates()
                state.epoch += 1
                state.check_host_updates()

        train(state)
        values = [p.detach() for p in (*model.parameters(), *model.buffers())]
        values += [v for of_one in optimizer.state.values() for v in of_one.values()]
        return Trained(torch.cat([value.flatten().double() for value in values]).tolist(), computed, losses)


def samples_of(step: int, trained: Sequence[Trained]) -> list[int]:
    """The samples of a step that any of these workers has computed, each once, ascending."""
    return sorted({n for one in trained for at, numbers in one.computed if at == step for n in numbers})


LOST_AT = 2
"""The step in which workers of a sharded model are lost."""


def sharded(
    fate: Fate, streamed: bool = False, pauses: Sequence[tuple[int, str]] = (), paused: Path | None = None
) -> Trained:
    """The same with a model that is sharded over the two workers of a replica.

    Args:
        fate: what it meets, at places of each micro-batch: "micro-batch 0", "forward 0" and "backward 0" (amid
            these passes, with parameters still to be gathered), "computed 0".
        streamed: see Kind.
        pauses: ranks, and the places of step LOST_AT in the first round at which they wait for a loss, and until all
            connections are cut that are to be.
        paused: a folder in which each that does leaves a file. Who dies in the first round waits until all have.
    """
    cuts: list[Cut] = []
    at = -1

    def severed(group: RoundGroup, *args: Any, real: Any = RoundGroup.sever, **kwargs: Any) -> Cut:
        cuts.append(real(group, *args, **kwargs))
        return cuts[-1]

    def meets(place: str) -> None:
        first_round = context.assignment().round_id == RoundId(1, 1)
        if paused is not None and first_round and fate.is_to_meet(state.step, f"{place} {at}"):
            until(lambda: len([*paused.iterdir()]) == len(pauses), every=0.01)
        if state.step == LOST_AT and first_round and (edriver.rank(), f"{place} {at}") in pauses:
            if paused is not None:
                (paused / str(edriver.rank())).touch()
            until(lambda: len(cuts) > 1 and not cuts[-1].under_way, every=0.01)
        fate.meets(state.step, f"{place} {at}")

    setattr(RoundGroup, "sever", severed)  # noqa: B010
    vars(severing)["FINISH_BOUND"] = math.inf  # or what takes so long on a busy machine would begin anew
    source: edriver.ElasticStream | edriver.ElasticSampler
    if streamed:
        source = stream = edriver.ElasticStream(range(len(SHARDS)), read, seed=5)
        loader: Any = stream.loader(MICRO_BATCH)
    else:
        source = edriver.ElasticSampler(range(SAMPLES), seed=5)
        loader = DataLoader(Numbered(), MICRO_BATCH, sampler=source)

    def build(mesh: DeviceMesh) -> nn.Module:
        torch.manual_seed(3)
        layers = nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3)
        model = nn.Sequential(nn.Identity(), *layers).double()
        fully_shard(model[1], mesh=mesh)
        fully_shard(model[3], mesh=mesh)
        fully_shard(model, mesh=mesh)
        model[0].register_forward_hook(lambda *_: meets("forward"))
        # Behind the last layer, whose gradients are there then, and before the first one is gathered.
        model[4].register_full_backward_pre_hook(lambda *_: meets("backward"))
        return model

    state = edriver.ShardedState(
        build=build,
        optimizer=lambda model: torch.optim.Adam(model.parameters(), lr=0.01),
        source=source,
        epoch=0,
        step=0,
    )
    computed: list[tuple[int, list[int]]] = []
    losses: dict[int, float] = {}

    @edriver.run
    def train(state: Any) -> None:
        nonlocal at
        while state.step < STEPS:
            source.set_epoch(state.epoch)
            for step in edriver.GlobalBatch(loader, state.model, size=SIZE):
                fate.before(state.step)
                state.optimizer.zero_grad()
                at = -1
                for numbers, inputs, labels in step:
                    at += 1
                    meets("micro-batch")
                    computed.append((state.step, numbers.tolist()))
                    loss = nn.functional.cross_entropy(state.model(inputs), labels)
                    torch.autograd.backward(step.scale(loss))
                    meets("computed")
                losses[state.step] = step.loss()
                fate.meets(state.step, "before the seal")
                state.clip_grad_norm_(0.1)
                state.optimizer.step()
                state.step += 1
                state.check_host_updates()
            state.epoch += 1
            state.check_host_updates()

    train(state)
    shards = [cast(DTensor, p).to_local().detach().flatten() for p in state.model.parameters()]
    return Trained(torch.cat(shards).tolist(), computed, losses)


def under_horovod(rank: int) -> list[float]:
    """Ranks of a world that stays as it is, where every third label does not count."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    hvd.init()
    model = linear()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    return _one_epoch(model, optimizer, optimizer)


def in_a_wrapper(rank: int) -> list[float]:
    """The same with DistributedDataParallel."""
    context.current.place.enter(dataclasses.replace(SINGLE_WORKER, rank=rank, size=3, round_id=RoundId(1, 1)))
    model = linear()
    return _one_epoch(model, DistributedDataParallel(model), torch.optim.SGD(model.parameters(), lr=0.1))


def by_hand() -> list[float]:
    """The same by a process that takes each step with all samples at once."""
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for numbers, inputs, labels in DataLoader(Numbered(), SIZE):
        optimizer.zero_grad()
        torch.autograd.backward(_counted(model, numbers, inputs, labels)[0])
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).tolist()


def linear() -> nn.Module:
    """The model of these."""
    torch.manual_seed(3)
    return nn.Linear(6, 3).double()


def _one_epoch(model: nn.Module, trained: Any, optimizer: torch.optim.Optimizer) -> list[float]:
    loader = DataLoader(Numbered(), MICRO_BATCH, sampler=edriver.ElasticSampler(range(SAMPLES), shuffle=False))
    forward = model if trained is optimizer else trained
    for step in edriver.GlobalBatch(loader, trained, size=SIZE):
        optimizer.zero_grad()
        for numbers, inputs, labels in step:
            torch.autograd.backward(step.scale(*_counted(forward, numbers, inputs, labels)))
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).tolist()


def _counted(model: nn.Module, numbers: Tensor, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The mean loss of the labels that count, and their number."""
    counting = numbers % 3 != 0
    losses = nn.functional.cross_entropy(model(inputs), labels, reduction="none")
    return (losses * counting).sum() / counting.sum(), counting.sum()
