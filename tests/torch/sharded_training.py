"""Training scripts with sharded models, as workers run them (elastic_world.py)."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

import edriver
from edriver.model.ids import RoundId
from edriver.worker import context
from edriver.worker.state import elastic_shards, resharding, seals
from edriver.worker.state.wishes import Wishes
from tests.torch.elastic_world import Fate
from tests.torch.fingerprint import fingerprint
from tests.torch.mesh_rounds import loss_of, new_model

STEPS = 12

MAX_NORM = 0.5
"""To which gradients are clipped; their norms are larger."""

SLOW_AT = 4
"""The step in whose seal some members stay behind, in `half_sealed`,"""

SLOW = (2,)
"""the ranks that do,"""

VICTIM = 3
"""and the one for which they wait."""


def hsdp(
    fate: Fate,
    build: Callable[[DeviceMesh], torch.nn.Module] = new_model,
    writes_at: int | None = None,
    decays: bool = False,
    before_step: Callable[[edriver.ShardedState], None] = lambda _: None,
) -> str:
    """A sharded model with clipping, a scheduler, a sampler, and a commit now and then.

    Args:
        fate: what it meets.
        build: makes the model.
        writes_at: the step before which it writes to its parameters; None: it never does.
        decays: whether it writes to them after each step.
        before_step: is called before each.
    """

    def clip(state: edriver.ShardedState) -> object:
        return torch.nn.utils.clip_grad_norm_(state.model.parameters(), MAX_NORM)

    return _trained(fate, clip, build, writes_at, decays, before_step)


def hsdp_clipped_in_the_seal(fate: Fate) -> str:
    """The same, where clipping is the seal."""
    return _trained(fate, lambda state: state.clip_grad_norm_(MAX_NORM))


def _trained(
    fate: Fate,
    clip: Callable[[edriver.ShardedState], object],
    build: Callable[[DeviceMesh], torch.nn.Module] = new_model,
    writes_at: int | None = None,
    decays: bool = False,
    before_step: Callable[[edriver.ShardedState], None] = lambda _: None,
) -> str:
    def make_optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        optimizer.register_step_pre_hook(lambda *_: fate.meets(state.step, "before the seal"))
        model.get_submodule("2").register_forward_pre_hook(lambda *_: fate.meets(state.step, "forward"))
        model.get_submodule("2").register_full_backward_hook(lambda *_: fate.meets(state.step, "reducing"))
        optimizer.register_step_post_hook(lambda *_: fate.meets(state.step, "after the step"))
        return optimizer

    state = edriver.ShardedState(
        build=build,
        optimizer=make_optimizer,
        scheduler=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.9),
        sampler=edriver.ElasticSampler(range(64)),
        step=0,
    )

    def dying(name: str, place: str, last: int = STEPS) -> None:
        """Have a worker die in a method of the state, if that is its fate; steps from the last one on are one."""
        real = getattr(state, name)

        def method(*args: Any) -> Any:
            fate.meets(min(state.step, last), place)
            return real(*args)

        setattr(state, name, method)

    dying("_load", "received")  # of a receiver, that has all of it and has changed nothing
    dying("_exchange", "sends", last=1)
    dying("save", "commit")

    @edriver.run
    def train(state: edriver.ShardedState) -> None:
        while state.step < STEPS:
            fate.before(state.step)
            before_step(state)
            state.optimizer.zero_grad()
            if writes_at == state.step:
                with torch.no_grad():
                    for parameter in state.model.parameters():
                        parameter.mul_(0.5)
            loss = loss_of(state.model, state.step)
            loss.register_hook(lambda _: fate.meets(state.step, "backward"))  # type: ignore[no-untyped-call]
            loss.backward()  # type: ignore[no-untyped-call]
            clip(state)
            state.optimizer.step()
            if decays:
                with torch.no_grad():
                    for parameter in state.model.parameters():
                        parameter.mul_(0.9)
            state.scheduler.step()
            state.step += 1
            if state.step % 5 == 0:
                state.commit()
            else:
                state.check_host_updates()

    train(state)
    return fingerprint(state)


def of_another_model(fate: Fate) -> str:
    """Newcomers have another model, of whose first parameter position 0 has a shard of the same shape."""
    return unlike(fate, lambda mesh: new_model(mesh, width=8))


def on_another_mesh(fate: Fate) -> str:
    """Newcomers shard over a part of the mesh."""
    return unlike(fate, lambda mesh: new_model(mesh["shard"]))


def made_ahead(fate: Fate) -> str:
    """Newcomers make their models once, before their first round, and are bound to its mesh."""

    def build(mesh: DeviceMesh) -> torch.nn.Module:
        assert context.in_round() is not _is_newcomer(), "a newcomer makes its model in a round, while others wait"
        return new_model(mesh)

    return hsdp(fate, build)


def made_by_rank(fate: Fate) -> str:
    """Models are made by workers that ask for their rank, which newcomers have in a round only."""
    calls: list[bool] = []

    def build(mesh: DeviceMesh) -> torch.nn.Module:
        calls.append(context.in_round())
        torch.rand(1)
        edriver.rank()
        return new_model(mesh)

    ended = hsdp(fate, build)
    assert calls == ([False, True] if _is_newcomer() else [True]), calls
    return ended


def made_wrongly(fate: Fate) -> str:
    """Newcomers cannot make their models."""

    def build(mesh: DeviceMesh) -> torch.nn.Module:
        if _is_newcomer():
            raise FileNotFoundError("no weights here")
        return new_model(mesh)

    return hsdp(fate, build)


def made_with_a_group(fate: Fate) -> str:
    """Newcomers make process groups, which others do not."""

    def build(mesh: DeviceMesh) -> torch.nn.Module:
        if _is_newcomer():
            dist.new_group([0], use_local_synchronization=True)
        return new_model(mesh)

    return hsdp(fate, build)


def _is_newcomer() -> bool:
    return int(os.environ["EDRIVER_WORKER_ID"]) > 2


def unlike(fate: Fate, build: Callable[[DeviceMesh], torch.nn.Module]) -> str:
    """A script that the first four workers run in another form."""
    newcomer = int(os.environ["EDRIVER_WORKER_ID"]) > 4
    return hsdp(fate, build if newcomer else new_model)


def half_sealed(fate: Fate) -> str:
    """The same, where some members of the first round do not come to know that a seal is complete before one dies."""
    _break_a_seal(fate)
    return hsdp(fate)


def half_clipped(fate: Fate) -> str:
    """The same, where clipping is the seal: those members do not know the norm either."""
    _break_a_seal(fate)
    return hsdp_clipped_in_the_seal(fate)


def _break_a_seal(fate: Fate) -> None:
    steps = [0]

    def seal(*given: Any, real: Callable[..., tuple[Wishes, float]] = seals.sealed) -> tuple[Wishes, float]:
        answer = real(*given)
        steps[0] += 1
        if steps[0] == SLOW_AT + 1 and context.assignment().round_id == RoundId(1, 1):
            if edriver.rank() in SLOW:
                dist.recv(torch.empty(1), VICTIM)
            elif edriver.rank() == VICTIM:
                fate.meets(SLOW_AT, "in the seal")
        return answer

    seals.sealed = seal  # type: ignore[assignment]


def overwritten(fate: Fate) -> str:
    """The same, where the script writes to its parameters before a step."""
    return hsdp(fate, writes_at=3)


def decayed(fate: Fate) -> str:
    """The same, where the script writes to its parameters after each step."""
    return hsdp(fate, decays=True)


class Moody(torch.nn.Module):
    """Multiplies by what it keeps as extra state, and by two where it evaluates."""

    factor = 1.0

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return given * self.factor * (1 if self.training else 2)

    def get_extra_state(self) -> float:
        return self.factor

    def set_extra_state(self, state: Any) -> None:
        self.factor = state


def altered(fate: Fate) -> str:
    """A script that changes, on its way, what trains, what evaluates, and what a module keeps as extra state."""

    def build(mesh: DeviceMesh) -> torch.nn.Module:
        model = new_model(mesh)
        model[1] = Moody()
        return model

    def alter(state: edriver.ShardedState) -> None:
        if state.step == 0:  # newcomers join later
            first, moody = state.model.get_submodule("0"), state.model.get_submodule("1")
            assert isinstance(moody, Moody)
            first.requires_grad_(False)
            moody.eval()
            moody.factor = 0.5

    return hsdp(fate, build, before_step=alter)


def cut_short(fate: Fate) -> str:
    """The same, where a worker may die in a round's cut: before it sends what others need, or once it has its own."""

    module: Any = elastic_shards
    resharding.APART_BYTES = 1  # type: ignore[misc]  # so rows are received into the new shards themselves

    def reshard(*args: Any, real: Callable[..., Any] = module.reshard) -> Any:
        number = context.assignment().round_id.n
        fate.meets(number, "cutting")
        sends = real(*args)
        fate.meets(number, "cut")
        return sends

    module.reshard = reshard
    return hsdp(fate)
