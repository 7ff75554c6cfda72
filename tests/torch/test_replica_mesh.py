"""Replicas with several dimensions: tensor parallelism and shards inside a replica, from round to round."""

from __future__ import annotations

import functools
import itertools
import logging
import math
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.utils.data import DataLoader

from edriver.model.plan import SINGLE_WORKER
from edriver.worker import context
from edriver.worker.backend import fsdp2
from edriver.worker.sampler.elastic_sampler import ElasticSampler
from edriver.worker.sampler.elastic_stream import ElasticStream
from edriver.worker.state.sharded_state import ShardedState
from tests.torch.bound_state import Rounds
from tests.torch.fingerprint import fingerprint
from tests.torch.mesh_rounds import rounds_of
from tests.torch.parallel_model import (
    LENGTH,
    WIDTH,
    ContextAttention,
    context_parallel_model,
    parallel_model,
    plain_model,
    sequence_parallel_model,
    stage,
    tokens_of,
    train_step,
)
from tests.torch.ranks import run_ranks

INSIDE = {"shard": 2, "tensor": 2}

WORKERS = 8

ROUNDS = [[0, 1, 2, 3], [0, 1, 2, 3, 4, 5, 6, 7], [4, 1, 6, 3, 0, 5, 2, 7], [4, 1, 6, 3], [4, 1, 6, 3]]
"""A replica that another one joins; both in another order; survivors of each, a whole one together; the same again."""

STEPS = 2
"""In each round."""


def adamw(model: torch.nn.Module) -> torch.optim.Optimizer:
    """Fused: DTensor looks long for how to place the results of each operation over three dimensions."""
    return torch.optim.AdamW(model.parameters(), lr=0.05, fused=True)


def new_state(build: Callable[..., torch.nn.Module], seed: int = 3) -> ShardedState:
    state = ShardedState(
        build=partial(build, seed=seed),
        optimizer=adamw,
        replica_mesh=INSIDE,
        step=0,
    )
    state.bind(Rounds())
    return state


def train(state: ShardedState, steps: int) -> None:
    for _ in range(steps):
        train_step(state)


def quiet(build: Callable[..., torch.nn.Module], worker: int) -> str:
    state = new_state(build, seed=3 + worker % 2)  # what workers along "tensor" share, they get from the first
    for _, mesh in rounds_of(worker, 4, [[0, 1, 2, 3]], inside=INSIDE):
        state.sync()
        train(state, len(ROUNDS) * STEPS)
        for copy in (fsdp2.local(p) for p in fsdp2.sharded(state.model) if fsdp2.copies(p, mesh) == 2):
            first = copy.detach().clone()
            dist.broadcast(first, group=mesh.get_group("tensor"), group_src=0)
            assert torch.equal(first, copy)
    return fingerprint(state)


@functools.cache
def quiet_run(build: Callable[..., torch.nn.Module]) -> list[str]:
    return run_ranks(partial(quiet, build), 4)


def lacks_something(model: torch.nn.Module) -> str:
    return f"{type(model).__name__} lacks something"


def disturbed(build: Callable[..., torch.nn.Module], binds: bool, worker: int) -> str:
    if not binds:
        fsdp2.trouble = lacks_something
    state = new_state(build, seed=3 + worker % 2 if worker < 4 else worker)
    kept: list[Any] = []
    for _ in rounds_of(worker, WORKERS, ROUNDS, inside=INSIDE):
        if state.model is not None:
            state.on_reset()
        state.sync()
        kept.append((state.model, state.optimizer, *state.optimizer.param_groups[0]["params"]))
        train(state, STEPS)
        state.first_boundary()
        interrupt(state)
        state.return_to_boundary()
    if worker == 3:
        assert len({tuple(map(id, each)) for each in kept}) == (1 if binds else len(ROUNDS))
    return fingerprint(state)


def interrupt(state: ShardedState) -> None:
    """A step whose backward pass ends amid the first block, after the last one."""

    def fail(_grad: torch.Tensor) -> None:
        raise InterruptedError

    def watch(_module: torch.nn.Module, _args: Any, output: torch.Tensor) -> None:
        output.register_hook(fail)  # type: ignore[no-untyped-call]

    with state.model.get_submodule("1").register_forward_hook(watch):
        loss = state.model(tokens_of(99)).square().sum()
    with pytest.raises(InterruptedError):
        loss.backward()
    assert state.clean, state.why_torn


@pytest.mark.parametrize(
    ("build", "binds"),
    [
        pytest.param(parallel_model, True, id="bound"),
        pytest.param(parallel_model, False, id="made-anew"),
        pytest.param(sequence_parallel_model, True, id="sequence"),
    ],
)
def test_all_positions_end_with_the_bits_of_a_quiet_run(build: Callable[..., torch.nn.Module], binds: bool) -> None:
    expected = quiet_run(build)
    found = run_ranks(partial(disturbed, build, binds), WORKERS)
    assert len(set(expected)) == 4, "a position's shards are its own"
    assert [found[worker] for worker in ROUNDS[-1]] == expected


def norms(p: float, worker: int) -> tuple[float, list[tuple[Any, ...]]]:
    """The norm that clipping returns, and where this worker's shards lie."""
    found = 0.0
    places: list[tuple[Any, ...]] = []
    state = new_state(parallel_model)
    for _, mesh in rounds_of(worker, WORKERS, [list(range(WORKERS))], inside=INSIDE):
        state.sync()
        state.model(tokens_of(0)).square().sum().backward()
        found = float(state.clip_grad_norm_(0.5, p))
        for name, parameter in state.model.named_parameters():
            place = fsdp2.place_of(parameter)
            places.append((name, place, fsdp2.is_first(parameter, mesh), fsdp2.local(parameter).tolist()))
    return found, places


@pytest.mark.parametrize("p", [2.0, math.inf])
def test_the_norm_is_that_of_the_whole_model(p: float) -> None:
    """What several workers of a replica have, such as a norm's weights, counts once; and each place has one writer."""
    model = plain_model()
    model(tokens_of(0)).square().sum().backward()
    expected = float(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5, p))
    found = run_ranks(partial(norms, p), WORKERS)
    assert [norm for norm, _ in found] == pytest.approx([expected] * WORKERS, rel=1e-5)
    for name, parameter in model.named_parameters():
        whole = torch.full_like(parameter, math.nan)
        writers = torch.zeros_like(parameter)
        for _, places in found[:4]:
            ((_, (shape, sizes, first), writes, shard),) = [place for place in places if place[0] == name]
            assert shape == tuple(parameter.shape)
            at = tuple(slice(f, f + s) for f, s in zip(first, sizes, strict=True))
            whole[at] = torch.tensor(shard)
            writers[at] += writes
        assert torch.equal(whole, parameter), name
        assert torch.equal(writers, torch.ones_like(writers)), name


def test_sizes_and_names_of_dimensions_are_checked() -> None:
    def made(**dimensions: int) -> ShardedState:
        return ShardedState(build=parallel_model, optimizer=sgd, replica_mesh=dimensions)

    for dimensions in ({}, {"replicate": 2}, {"shard": 2, "tensor": 0}):
        with pytest.raises(ValueError, match="replica_mesh= takes the dimensions of a replica"):
            made(**dimensions)
    with pytest.raises(TypeError, match="checkpoint= cannot be used with a pipeline"):
        ShardedState(parallel_model, sgd, replica_mesh={"pp": 2}, checkpoint="folder")


def in_another_order(worker: int) -> list[int]:
    """A replica_mesh of which fully_shard's dimension is the last: the meshes of parameters are in another order."""
    inside = {"tensor": 2, "shard": 1}
    state = ShardedState(parallel_model, adamw, replica_mesh=inside, step=0)
    state.bind(Rounds())
    models = []
    for _ in rounds_of(worker, 2, [[0, 1], [0, 1]], inside=inside):
        state.sync()
        train(state, STEPS)
        models.append(id(state.model))
    return models


def test_the_dimensions_may_be_in_any_order() -> None:
    for first, second in run_ranks(in_another_order, 2):
        assert first == second


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters())


def over_two(mesh: DeviceMesh) -> Any:
    return fully_shard(torch.nn.Linear(4, 4), mesh=mesh["shard", "tensor"])


def of_another_mesh(mesh: DeviceMesh) -> Any:
    other = init_device_mesh("cpu", (1, 1), mesh_dim_names=("replicate", "shard"))
    return fully_shard(torch.nn.Linear(4, 4), mesh=other)


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("build", [over_two, of_another_mesh])
def test_shards_go_over_the_replicas_and_one_dimension_inside_them(build: Callable[[DeviceMesh], Any]) -> None:
    state = ShardedState(build, sgd, replica_mesh={"shard": 1, "tensor": 1})
    with pytest.raises(TypeError, match=r"over another mesh than .*: pass fully_shard mesh\['replicate', 'shard'\]"):
        state.sync()


def communicating(mesh: DeviceMesh) -> Any:
    model = parallelize_module(plain_model(), mesh["tensor"], {"1.up": ColwiseParallel()})
    return fully_shard(model, mesh=mesh["replicate", "shard"])


@pytest.mark.usefixtures("group")
def test_build_may_not_communicate() -> None:
    state = ShardedState(communicating, sgd, replica_mesh={"shard": 1, "tensor": 1})
    with pytest.raises(TypeError, match=r"`build` or `optimizer` communicates .*: give them src_data_rank=None"):
        state.sync()


@pytest.mark.usefixtures("group")
def test_the_dimensions_make_up_a_replica() -> None:
    state = ShardedState(parallel_model, sgd, replica_mesh={"shard": 2, "tensor": 3})
    with pytest.raises(ValueError, match="of shard 2 x tensor 3 is of 6 workers, and a replica has 1: start the run "):
        state.sync()


CONTEXT = {"shard": 2, "context": 2}

SEQUENCES = 16


def sequences(indices: list[int]) -> torch.Tensor:
    return torch.stack([torch.randn(LENGTH, 4, generator=torch.Generator().manual_seed(index)) for index in indices])


def in_context(rounds: list[list[int]], steps: int, worker: int) -> tuple[str, list[list[int]], dict[str, Any], int]:
    """Steps of a sequence for each replica and shard; returns the state, what was trained on, the parameters, and the
    length of this worker's share when the scheduler was made.
    """
    dataset, lengths = range(SEQUENCES), list[int]()

    def constant(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LambdaLR:
        lengths.append(len(state.sampler))
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)

    state = ShardedState(
        context_parallel_model,
        adamw,
        scheduler=constant,
        replica_mesh=CONTEXT,
        sampler=ElasticSampler(dataset, shuffle=False),
    )
    state.bind(Rounds())
    trained, whole = list[list[int]](), dict[str, Any]()
    for _, mesh in rounds_of(worker, 1 + max(max(members) for members in rounds), rounds, inside=CONTEXT):
        if state.model is not None:
            state.on_reset()
        state.sync()
        context = mesh["context"]
        loader: DataLoader[int] = DataLoader(dataset, batch_size=1, sampler=state.sampler)  # type: ignore[arg-type]
        for number, batch in zip(range(steps), loader, strict=False):
            state.optimizer.zero_grad()
            part = sequences(batch.tolist()).chunk(context.size(), 1)[context.get_local_rank()]
            state.model(part).square().sum().backward()
            gradients: list[Any] = [parameter.grad for parameter in state.model.parameters()]
            for gradient in gradients:
                dist.all_reduce(gradient.to_local(), group=context.get_group())
            state.clip_grad_norm_(0.5)
            state.optimizer.step()
            state.sampler.record_batch(number, 1)
            trained.append(batch.tolist())
            state.check_host_updates()
        parameters: dict[str, Any] = dict(state.model.named_parameters())
        whole = {name: parameter.full_tensor().tolist() for name, parameter in parameters.items()}
    return fingerprint(state), trained, whole, lengths[0]


def test_workers_along_a_sequence_train_on_parts_of_the_same_samples() -> None:
    """What comes of it is the training of one process on all the samples, through a replica that joins and one that
    leaves.
    """
    rounds = [[0, 1, 2, 3], [0, 1, 2, 3, 4, 5, 6, 7], [4, 1, 6, 3]]
    found = run_ranks(partial(in_context, rounds, 2), WORKERS)
    trained = [found[worker][1] for worker in range(WORKERS)]
    assert trained[0][:2] == trained[1][:2] == [[0], [2]]
    assert trained[2][:2] == trained[3][:2] == [[1], [3]]
    assert [trained[worker][-2:] for worker in rounds[-1]] == [[[12], [14]], [[12], [14]], [[13], [15]], [[13], [15]]]
    assert [length for *_, length in found] == [8] * 4 + [4] * 4, (
        "of 16, of which a newcomer does not know yet what is done"
    )
    torch.manual_seed(3)
    model = ContextAttention(None)
    optimizer = adamw(model)
    at = 0
    for shares in (2, 2, 4, 4, 2, 2):
        optimizer.zero_grad()
        for index in range(at, at + shares):
            (model(sequences([index])).square().sum() / shares).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        at += shares
    assert at == SEQUENCES
    for worker in rounds[-1]:
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(torch.tensor(found[worker][2][name]), parameter.detach())
    assert found[4][0] == found[1][0], "workers along the sequence hold the same"


def streamed(rounds: list[list[int]], worker: int) -> list[list[int]]:
    """What this worker reads of a stream, two batches in the first round and all that is left in the second."""
    stream = ElasticStream(range(8), lambda shard: iter(range(8 * shard, 8 * shard + 8)), shuffle=False)
    state = ShardedState(context_parallel_model, adamw, replica_mesh=CONTEXT, stream=stream)
    state.bind(Rounds())
    read = []
    for number, _ in rounds_of(worker, WORKERS, rounds, inside=CONTEXT):
        if state.model is not None:
            state.on_reset()
        state.sync()
        batches = iter(state.stream.loader(batch_size=2))
        for batch in itertools.islice(batches, 2) if number == 0 else batches:
            read.append(batch.tolist())
            state.check_host_updates()
    return read


def test_workers_along_a_sequence_read_the_same_of_a_stream() -> None:
    found = run_ranks(partial(streamed, [[0, 1, 2, 3], [0, 1, 2, 3, 4, 5, 6, 7]]), WORKERS)
    assert found[0::2] == found[1::2]
    assert sorted(sample for worker in found[0::2] for batch in worker for sample in batch) == [*range(64)]


def draws(rounds: list[list[int]], worker: int) -> list[tuple[float, float, float]]:
    """What this worker draws at the beginning of each of its rounds, from generators with its own seeds."""
    random.seed(worker)
    numpy.random.seed(worker)
    state = new_state(parallel_model, seed=worker)
    found = []
    for _ in rounds_of(worker, WORKERS, rounds, inside=INSIDE):
        if state.model is not None:
            state.on_reset()
        state.sync()
        found.append((float(torch.rand(())), random.random(), float(numpy.random.rand())))
        if worker % 2:
            random.random()  # as one that has gone its own way
    return found


def test_workers_that_compute_a_step_together_draw_the_same_random_numbers() -> None:
    rounds = [[0, 1, 2, 3], [0, 1, 2, 3, 4, 5, 6, 7], [4, 1, 6, 3]]
    found = run_ranks(partial(draws, rounds), WORKERS)
    first, second = ([each[number] for each in found[:4]] for number in (0, 1))
    last = [found[worker][-1] for worker in rounds[-1]]
    for drawn in (first, second, last):
        assert drawn[0::2] == drawn[1::2]
        assert len(set(drawn)) == 2
    assert found[4][0] == found[5][0]
    assert found[6][0] == found[7][0]


def scaled(worker: int) -> str:
    scaler = torch.amp.GradScaler("cpu")
    state = ShardedState(parallel_model, adamw, replica_mesh={"shard": 1, "tensor": 2}, scaler=scaler, step=0)
    state.bind(Rounds())
    for _ in rounds_of(worker, 2, [[0, 1]], inside={"shard": 1, "tensor": 2}):
        state.sync()
        train(state, 1)
        try:
            state.first_boundary()
        except TypeError as error:
            return str(error)
    return ""


def test_a_scaler_of_gradients_is_refused() -> None:
    for said in run_ranks(scaled, 2):
        assert "a GradScaler may not see all infinite gradients of workers along tensor" in said


def over_each(mesh: DeviceMesh) -> Any:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    fully_shard(model[0], mesh=mesh["replicate", "tensor"])
    return fully_shard(model, mesh=mesh["replicate", "shard"])


@pytest.mark.usefixtures("group")
def test_all_modules_are_sharded_over_the_same_dimension() -> None:
    state = ShardedState(over_each, sgd, replica_mesh={"shard": 1, "tensor": 1})
    with pytest.raises(TypeError, match="over several dimensions, shard and tensor, and fully_shard averages"):
        state.sync()


def without_the_last(mesh: DeviceMesh) -> Any:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    fully_shard(model[0], mesh=mesh)
    return model


@pytest.mark.usefixtures("group")
def test_parameters_whose_gradients_nothing_averages_are_named(caplog: pytest.LogCaptureFixture) -> None:
    context.current.place.enter(SINGLE_WORKER)
    ShardedState(without_the_last, sgd).sync()
    assert "'1.weight' (and 1 more) learns and is in no module that fully_shard has sharded" in caplog.text


def divided(by_size: bool, worker: int) -> list[str]:
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("edriver.worker").addHandler(handler)

    def build(mesh: DeviceMesh) -> Any:
        model = of_the_mesh(mesh)
        model.set_gradient_divide_factor(float(mesh.size()) if by_size else 1.0)
        return model

    state = ShardedState(build, sgd)
    for _ in rounds_of(worker, 2, [[0, 1]]):
        state.sync()
    return said


@pytest.mark.parametrize("by_size", [True, False])
def test_gradients_that_are_divided_by_a_number_of_workers_that_will_not_stay_are_named(by_size: bool) -> None:
    of_first, of_second = run_ranks(partial(divided, by_size), 2)
    assert [line.startswith("`build` has called set_gradient_divide_factor(2)") for line in of_first] == [
        True
    ] * by_size
    assert not of_second


def of_the_mesh(mesh: DeviceMesh) -> Any:
    return fully_shard(torch.nn.Linear(4, 4), mesh=mesh)


@pytest.mark.usefixtures("group")
def test_a_norm_that_is_nan_makes_all_gradients_nan() -> None:
    state = ShardedState(of_the_mesh, sgd)
    state.sync()
    state.model(torch.ones(2, 4)).square().sum().backward()
    gradients = [fsdp2.local(parameter.grad) for parameter in state.model.parameters() if parameter.grad is not None]
    gradients[0].fill_(math.nan)
    assert math.isnan(state.clip_grad_norm_(0.5))
    assert all(gradient.isnan().all() for gradient in gradients)


PIPELINE = {"pipeline": 2, "shard": 2}


def train_stages(state: ShardedState, mesh: DeviceMesh, steps: int) -> None:
    """Each step: the first stage sends what it has computed, and gets the gradient of that back."""
    group = mesh.get_group("pipeline")
    for _ in range(steps):
        state.optimizer.zero_grad()
        if state.model.last:
            arrived = torch.empty(2, LENGTH, WIDTH)
            dist.recv(arrived, group=group, group_src=0)
            arrived.requires_grad_()
            state.model(arrived).square().sum().backward()
            assert arrived.grad is not None
            dist.send(arrived.grad, group=group, group_dst=0)
        else:
            computed = state.model(tokens_of(state.step))
            dist.send(computed.detach(), group=group, group_dst=1)
            gradient = torch.empty_like(computed)
            dist.recv(gradient, group=group, group_src=1)
            computed.backward(gradient)
        state.clip_grad_norm_(0.5)
        state.optimizer.step()
        state.step += 1
        state.check_host_updates()


def staged(rounds: list[list[int]], steps: int, worker: int) -> str:
    state = ShardedState(stage, adamw, replica_mesh=PIPELINE, step=0)
    state.bind(Rounds())
    for _, mesh in rounds_of(worker, 1 + max(max(members) for members in rounds), rounds, inside=PIPELINE):
        if state.model is not None:
            state.on_reset()
        state.sync()
        train_stages(state, mesh, steps)
    return fingerprint(state)


def test_stages_of_a_pipeline_end_with_the_bits_of_a_quiet_run() -> None:
    """What joins is stages of their own, and the norm is that of all of them."""
    rounds = [[0, 1, 2, 3], [0, 1, 2, 3, 4, 5, 6, 7], [4, 1, 6, 3]]
    expected = run_ranks(partial(staged, rounds[:1], 6), 4)
    found = run_ranks(partial(staged, rounds, 2), WORKERS)
    assert len(set(expected)) == 4
    assert [found[worker] for worker in rounds[-1]] == expected
