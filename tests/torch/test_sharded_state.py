"""ShardedState: what a commit keeps, what a newcomer receives, what a broken seal leaves; position by position."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.optim.lr_scheduler import StepLR

from edriver.worker.backend import fsdp2
from edriver.worker.errors import PeerLostError
from edriver.worker.sampler.elastic_sampler import ElasticSampler
from edriver.worker.state import seals
from edriver.worker.state.seals import sealed
from edriver.worker.state.sharded_state import ShardedState
from edriver.worker.state.wishes import Wishes
from tests.torch import bound_state
from tests.torch.fingerprint import fingerprint
from tests.torch.mesh_rounds import (
    KINDS,
    Kind,
    interrupt_backward,
    loss_of,
    make_step,
    new_model,
    rounds_of,
)
from tests.torch.ranks import run_ranks

WORKERS = 6
ROUNDS = [[0, 1, 2, 3], [2, 1], [2, 1, 4, 5], [4, 1, 2, 5]]
"""2 x 2, then a survivor of each position, then two newcomers, then the same workers in another order."""

STEPS = 4
"""In each round."""

PLAIN = Kind(lambda params: torch.optim.AdamW(params, lr=0.05))


class Rounds(bound_state.Rounds):
    """Takes every boundary, and answers broken seals.

    Args:
        applies: whether the next round continues from the step in whose seal the round has broken.
    """

    def __init__(self, applies: bool = False) -> None:
        self.commits = 0
        self._applies = applies

    def boundary(self, committed: bool) -> None:
        self.commits += committed

    def seal_broken(self, error: Exception) -> None:
        if not self._applies:
            raise PeerLostError(str(error))


def new_state(kind: Kind = PLAIN, seed: int = 3, worker: int = 0) -> ShardedState:
    state = ShardedState(
        build=lambda mesh: with_noise(mesh, kind.dtype, seed, worker),
        optimizer=lambda model: kind.optimizer(model.parameters()),
        scheduler=lambda optimizer: StepLR(optimizer, 3, 0.5),
        sampler=ElasticSampler(range(64)),
        step=0,
        drawn=[worker],
    )
    state.bind(Rounds())
    return state


def with_noise(mesh: DeviceMesh, dtype: torch.dtype, seed: int, worker: int) -> torch.nn.Sequential:
    """A model with a buffer that nothing shards, and that each worker draws in its own way."""
    model = new_model(mesh, dtype, seed)
    model.register_buffer("noise", torch.full((3,), float(worker)))
    return model


def train(state: ShardedState, steps: int, clips: bool = False) -> None:
    for _ in range(steps):
        make_step(state.model, state.optimizer, state.step, clips)
        state.scheduler.step()
        state.step += 1
        state.check_host_updates()


def quiet(name: str, worker: int) -> str:
    kind = KINDS[name]
    state = new_state(kind, worker=0)
    for _ in rounds_of(worker, 2, [[0, 1]]):
        state.sync()
        train(state, len(ROUNDS) * STEPS, kind.clips)
    return fingerprint(state)


def lacks_something(model: torch.nn.Module) -> str:
    return f"{type(model).__name__} lacks something"


def disturbed(name: str, binds: bool, worker: int) -> str:
    kind = KINDS[name]
    if not binds:
        fsdp2.trouble = lacks_something
    state = new_state(kind, 3 if worker in (0, 1) else worker, worker)
    objects: set[tuple[int, ...]] = set()
    kept: list[Any] = []
    for number, _ in rounds_of(worker, WORKERS, ROUNDS):
        if state.model is not None:
            state.on_reset()
        state.sync()
        objects.add((id(state.model), id(state.optimizer), *map(id, state.optimizer.param_groups[0]["params"])))
        kept.append(state.model)  # or another one could get its id
        train(state, 2, kind.clips)
        state.commit()
        train(state, STEPS - 2, kind.clips)
        if number == 0:
            interrupt_backward(state.model, state.step)
            assert state.clean, state.why_torn
            state.return_to_boundary()
        elif number == 1:
            make_step(state.model, state.optimizer, 99, kind.clips)
            assert not state.clean
            state.restore()
            train(state, STEPS - 2, kind.clips)
    if worker in (1, 2):  # in several rounds from the first on
        assert (len(objects) == 1) is binds
    return fingerprint(state)


@pytest.mark.parametrize("kind", ["adam", "adamw-fused", "momentum", "bf16"])
def test_positions_end_with_the_bits_of_a_quiet_run(kind: str) -> None:
    check_positions(kind, binds=True)


def test_where_modules_cannot_be_bound_they_are_made_anew() -> None:
    check_positions("adam", binds=False)


def check_positions(kind: str, binds: bool) -> None:
    expected = run_ranks(partial(quiet, kind), 2)
    found = run_ranks(partial(disturbed, kind, binds), WORKERS)
    assert expected[0] != expected[1], "a position's shards are its own"
    assert [[found[worker] for worker in ROUNDS[-1][p::2]] for p in range(2)] == [[bits] * 2 for bits in expected]


def seal(applies: bool, worker: int) -> tuple[str, str, str]:
    """Break the third step's seal; returns the bits of the second step, what is left, and those of the third."""
    state = new_state()
    before = left = after = ""
    for _ in rounds_of(worker, 4, [[0, 1, 2, 3]]):
        state.bind(Rounds(applies))
        state.sync()
        train(state, 2)
        before = fingerprint(state)
        unbroken = seals.sealed
        seals.sealed = broken  # type: ignore[assignment]
        try:
            train(state, 1)
        except PeerLostError:
            assert state.clean, state.why_torn
            assert all(p.grad is not None for p in state.model.parameters())
            state.return_to_boundary()
            assert all(p.grad is None for p in state.model.parameters())
        seals.sealed = unbroken
        left = fingerprint(state)
        train(state, 3 - state.step)
        after = fingerprint(state)
    return before, left, after


def broken(*given: object) -> tuple[Wishes, float]:
    del given
    raise RuntimeError("a member is lost")


@pytest.mark.parametrize("applies", [False, True])
def test_a_worker_whose_seal_breaks_makes_the_step_alone_or_goes_back(applies: bool) -> None:
    for before, left, after in run_ranks(partial(seal, applies), 4):
        assert left == (after if applies else before)
        assert before != after


def unsealed(worker: int) -> list[str]:
    """Three of four members enter a step's seal, and the fourth comes only when they have said so."""
    happened: list[str] = []
    state = new_state()
    for _ in rounds_of(worker, 4, [[0, 1, 2, 3]]):
        state.sync()
        late = dist.get_rank() == 3
        state.optimizer.register_step_post_hook(lambda *_: happened.append("stepped"))
        real = seals.sealed

        def sealing(
            *given: Any, real: Callable[..., tuple[Wishes, float]] = real, late: bool = late
        ) -> tuple[Wishes, float]:
            if late:
                for rank in range(3):
                    dist.recv(torch.empty(1), rank)
                happened.append("all others wait")
            else:
                dist.send(torch.ones(1), 3)
            return real(*given)

        seals.sealed = sealing  # type: ignore[assignment]
        train(state, 1)
        seals.sealed = real
        if not late:
            dist.send(torch.ones(1) * (happened == ["stepped"]), 3)
        else:
            for rank in range(3):
                told = torch.empty(1)
                dist.recv(told, rank)
                assert told.item() == 1
    return happened


def test_no_step_begins_before_all_are_in_the_seal() -> None:
    assert run_ranks(unsealed, 4)[3] == ["all others wait", "stepped"]


def exposed(worker: int) -> int:
    """Only one of four members is due for a commit of its own."""
    rounds, state = Rounds(), new_state()
    for _ in rounds_of(worker, 4, [[0, 1, 2, 3]]):
        state.bind(rounds)
        state.sync()
        state._schedule.made(1e9 if dist.get_rank() != 2 else 0.0)
        state._steps.expose("a reason")
        train(state, 3)
    return rounds.commits


def test_members_commit_by_themselves_at_the_same_boundaries() -> None:
    commits = run_ranks(exposed, 4)
    assert commits[0] > 0
    assert len(set(commits)) == 1


class Communicating(torch.optim.SGD):
    """Sends what it has, as optimizers do that work on whole matrices."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.full_tensor()
        super().step(closure)


def first_boundary(worker: int) -> list[str]:
    """What a world of two says of an optimizer that communicates in its step, and of one that does not."""
    found = []
    for number, _ in rounds_of(worker, 2, [[0, 1], [0, 1]]):
        kind = Communicating if number == 0 else torch.optim.SGD
        state = new_state(Kind(lambda params, kind=kind: kind(params, lr=0.1)))  # type: ignore[misc]
        state.sync()
        make_step(state.model, state.optimizer, 0, clips=True)
        try:
            state.first_boundary()
        except TypeError as error:
            found.append(f"{number}: {error}")
    return found


def test_an_optimizer_that_communicates_in_its_step_is_refused_at_the_first_boundary() -> None:
    for found in run_ranks(first_boundary, 2):
        (one,) = found
        assert one.startswith("0: Communicating communicates in its step, so a loss there would leave")
        assert "restart mode, with edriver.checkpoints in memory" in one


NORMS = [2.0, 1.0, math.inf]

MAX_NORM = 0.5


def clipped(worker: int) -> list[tuple[float, float, float]]:
    """For each kind of norm: that of all gradients, what clipping says of it, and what it leaves."""
    found: list[tuple[float, float, float]] = []
    for _ in rounds_of(worker, 4, [[0, 1, 2, 3]]):
        state = ShardedState(build=with_one_whole, optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1))
        state.bind(Rounds())
        state.sync()
        for p in NORMS:
            state.optimizer.zero_grad()
            whole = state.model.get_parameter("whole")
            (loss_of(state.model, 1) + whole.square().sum()).backward()  # type: ignore[no-untyped-call]
            before = norm_of_whole_gradients(state.model, p)
            said = state.clip_grad_norm_(MAX_NORM, p)
            found.append((before, said.item(), norm_of_whole_gradients(state.model, p)))
    return found


def with_one_whole(mesh: DeviceMesh) -> torch.nn.Sequential:
    """A model with a parameter that is not sharded."""
    model = new_model(mesh)
    model.register_parameter("whole", torch.nn.Parameter(torch.arange(1.0, 4.0)))
    return model


def norm_of_whole_gradients(model: torch.nn.Module, p: float) -> float:
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    whole = [each.full_tensor() if isinstance(each, DTensor) else each for each in gradients]
    return float(torch.linalg.vector_norm(torch.cat([each.flatten() for each in whole]), p))


def test_clipping_in_the_seal_is_by_the_norm_of_all_gradients() -> None:
    for found in run_ranks(clipped, 4):
        for before, said, after in found:
            assert before > 2 * MAX_NORM, "there is something to clip"
            assert said == pytest.approx(before)
            assert after == pytest.approx(MAX_NORM)


def seals_of_a_step(worker: int) -> list[int]:
    """The seals of a step that is clipped by torch or in the seal, and made or left out."""
    found: list[int] = []
    real = seals.sealed
    for _ in rounds_of(worker, 4, [[0, 1, 2, 3]]):
        state = new_state()
        state.sync()
        for in_seal, is_made in [(False, True), (True, True), (True, False), (False, True)]:
            seals.sealed = count = Mock(wraps=real)
            state.optimizer.zero_grad()
            loss_of(state.model, state.step).backward()  # type: ignore[no-untyped-call]
            if in_seal:
                state.clip_grad_norm_(MAX_NORM)
            else:
                torch.nn.utils.clip_grad_norm_(state.model.parameters(), MAX_NORM)
            if is_made:
                state.optimizer.step()
            else:
                state.optimizer.zero_grad()
            state.check_host_updates()
            found.append(count.call_count)
    return found


def test_a_step_has_one_seal() -> None:
    for found in run_ranks(seals_of_a_step, 4):
        assert found == [1, 1, 1, 1]


WISHES = [Wishes(commit=rank > 0, checkpoint=rank == 0, busy=rank == 9, no_memory=rank == 3) for rank in range(4)]


def wished(rank: int) -> list[tuple[Wishes, float]]:
    """What a seal says with nothing to reduce, with a sum, and with a maximum."""
    ops = dist.ReduceOp.SUM, dist.ReduceOp.MAX
    return [sealed(WISHES[rank]), *(sealed(WISHES[rank], float(rank), op) for op in ops)]


def test_a_seal_says_what_any_member_wishes_for_whatever_else_it_carries() -> None:
    any_of = Wishes(commit=True, checkpoint=True, no_memory=True)
    assert run_ranks(wished, 4) == [[(any_of, 0.0), (any_of, 6.0), (any_of, 3.0)]] * 4


def test_there_is_nothing_to_clip_before_the_first_round() -> None:
    with pytest.raises(RuntimeError, match="once a backward pass has reduced them"):
        new_state().clip_grad_norm_(1.0)


def reduce_late(state: ShardedState, at: int) -> None:
    """Reduces its loss after the step."""
    make_step(state.model, state.optimizer, at, clips=False)
    dist.all_reduce(torch.ones(1))


def evaluate_late(state: ShardedState, at: int) -> None:
    """Looks how the model does after the step: its parameters are gathered."""
    make_step(state.model, state.optimizer, at, clips=False)
    with torch.no_grad():
        loss_of(state.model, at)


def step_twice(state: ShardedState, at: int) -> None:
    """Two steps, as of a script that passes a boundary now and then."""
    make_step(state.model, state.optimizer, at, clips=False)
    make_step(state.model, state.optimizer, at, clips=False)


def reduce_before(state: ShardedState, at: int) -> None:
    """Reduces its loss where nothing can be torn."""
    dist.all_reduce(torch.ones(1))
    make_step(state.model, state.optimizer, at, clips=True)


def after_each_step(step_of: Callable[[ShardedState, int], None], worker: int) -> tuple[str, str]:
    """What the first boundary of the first round, and that of a later one, say of a script's steps."""
    said = []
    state = new_state()
    for _ in rounds_of(worker, 2, [[0, 1], [0, 1]]):
        state.sync()
        step_of(state, 0)
        state.check_host_updates()
        try:
            state.first_boundary()
        except TypeError as error:
            said.append(str(error))
        else:
            said.append("exposed" if state._steps.boundary() else "")
    return said[0], said[1]


@pytest.mark.parametrize(
    ("step_of", "reason"),
    [
        (reduce_late, "a collective runs between an optimizer's step and the boundary"),
        (evaluate_late, "a collective runs between an optimizer's step and the boundary"),
        (step_twice, "an optimizer makes several steps between two boundaries"),
    ],
)
def test_what_no_seal_can_help_is_refused_where_nothing_is_lost_by_it(
    step_of: Callable[[ShardedState, int], None], reason: str
) -> None:
    for first, later in run_ranks(partial(after_each_step, step_of), 2):
        assert first.startswith(reason)
        assert "state.check_host_updates()" in first
        assert later == "exposed"


def test_collectives_before_the_step_are_of_no_harm() -> None:
    assert run_ranks(partial(after_each_step, reduce_before), 2) == [("", "")] * 2


def sealed_at(worker: int) -> list[int]:
    """The number of seals after each of: a step's boundary, one without a step, and one of accumulated gradients."""
    state, found = new_state(), list[int]()
    seals.sealed = count = Mock(wraps=seals.sealed)
    for _ in rounds_of(worker, 2, [[0, 1]]):
        state.sync()
        train(state, 1)
        found.append(count.call_count)
        state.commit()
        found.append(count.call_count)
        loss_of(state.model, 1).backward()  # type: ignore[no-untyped-call]
        state.check_host_updates()
        found.append(count.call_count)
    return found


def test_a_boundary_without_a_step_is_sealed_and_one_in_the_midst_of_a_step_is_not() -> None:
    assert run_ranks(sealed_at, 2) == [[1, 2, 2]] * 2


def in_the_boundarys_seal(worker: int) -> tuple[bool, int]:
    """A boundary without a step, whose seal breaks: whether it counts, and what the worker's step is then."""
    rounds, state = Rounds(), new_state()
    for _ in rounds_of(worker, 2, [[0, 1]]):
        state.bind(rounds)
        state.sync()
        train(state, 2)
        real, seals.sealed = seals.sealed, broken  # type: ignore[assignment]
        state.step = 77
        try:
            state.check_host_updates()
        except PeerLostError:
            state.return_to_boundary()
            seals.sealed = real
            return state.clean, state.step
    raise AssertionError("the boundary has passed")


def test_a_boundary_whose_seal_breaks_is_not_passed() -> None:
    assert run_ranks(in_the_boundarys_seal, 2) == [(True, 2)] * 2


def leave(worker: int) -> str:
    """What the forward pass of worker 0 raises in a round that is over; the other one has left already."""
    state, over, said = new_state(), Rounds(), ""
    over.abort_cause = "worker 7 died"
    for _ in rounds_of(worker, 2, [[0, 1]]):
        state.sync()
        train(state, 2)
        if worker == 0:
            state.bind(over)
            try:
                loss_of(state.model, 2)
            except PeerLostError as error:
                said = str(error)
    return said


def test_a_module_raises_in_a_round_that_is_over_before_it_gathers_its_parameters() -> None:
    assert run_ranks(leave, 2) == ["worker 7 died", ""]


# ---- in a world of one


@pytest.fixture
def alone(group: None) -> ShardedState:
    del group
    state = new_state()
    state.sync()
    return state


def test_writes_to_parameters_and_to_their_shards_are_noticed(alone: ShardedState) -> None:
    parameter = alone.optimizer.param_groups[0]["params"][0]
    writes: list[Callable[[], object]] = [
        lambda: parameter.add_(1),
        lambda: parameter.to_local().mul_(2),
    ]
    train(alone, 1)
    for number, write in enumerate(writes):
        assert alone.clean, number
        with torch.no_grad():
            write()
        assert not alone.clean, number
        alone.keep_small()


def test_gradients_that_are_not_reduced_yet_make_a_half_done_step(alone: ShardedState) -> None:
    train(alone, 1)
    alone.optimizer.zero_grad()
    assert not alone.half_done()
    model: Any = alone.model
    model.set_requires_gradient_sync(False)
    loss_of(alone.model, 0).backward()  # type: ignore[no-untyped-call]
    assert alone.half_done()
    model.set_requires_gradient_sync(True)
    loss_of(alone.model, 0).backward()  # type: ignore[no-untyped-call]
    assert alone.half_done()
    alone.optimizer.step()
    assert not alone.half_done()


def test_what_is_evaluated_before_a_step_does_not_stay_for_the_next_forward_pass(alone: ShardedState) -> None:
    """torch has the parameters of the root module stand in full after a forward pass alone, and does not look again."""
    alone.optimizer.zero_grad()
    loss_of(alone.model, 0).backward()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        before = loss_of(alone.model, 1)
    alone.optimizer.step()
    with torch.no_grad():
        after = loss_of(alone.model, 1)
        fsdp2.reshard(alone.model)
        assert after == loss_of(alone.model, 1) != before


def test_a_step_that_is_interrupted_leaves_nothing(alone: ShardedState) -> None:
    train(alone, 2)
    before = fingerprint(alone)
    interrupt_backward(alone.model, 2)
    alone.return_to_boundary()
    fsdp2.forget_step(alone.model)
    assert not alone.half_done()
    assert fingerprint(alone) == before
