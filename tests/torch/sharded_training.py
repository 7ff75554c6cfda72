"""Training scripts with sharded models, as workers run them (elastic_world.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

import edriver
from edriver.model.ids import RoundId
from edriver.worker import context
from edriver.worker.state import elastic_shards, sharded_state
from tests.torch.elastic_world import Fate
from tests.torch.fingerprint import fingerprint
from tests.torch.mesh_rounds import loss_of, new_model

STEPS = 12

SLOW_AT = 4
"""The step in whose seal some members stay behind, in `half_sealed`,"""

SLOW = (2,)
"""the ranks that do,"""

VICTIM = 3
"""and the one for which they wait."""


def hsdp(fate: Fate, writes_at: int | None = None) -> str:
    """A sharded model with clipping, a scheduler, a sampler, and a commit now and then.

    Args:
        fate: what it meets.
        writes_at: the step before which it writes to its parameters; None: it never does.
    """

    def make_optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        optimizer.register_step_pre_hook(lambda *_: fate.meets(state.step, "before the seal"))
        optimizer.register_step_post_hook(lambda *_: fate.meets(state.step, "after the step"))
        return optimizer

    state = edriver.ShardedState(
        build=new_model,
        optimizer=make_optimizer,
        scheduler=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.9),
        sampler=edriver.ElasticSampler(range(64)),
        step=0,
    )

    @edriver.run
    def train(state: edriver.ShardedState) -> None:
        while state.step < STEPS:
            fate.before(state.step)
            state.optimizer.zero_grad()
            if writes_at == state.step:
                with torch.no_grad():
                    for parameter in state.model.parameters():
                        parameter.mul_(0.5)
            loss = loss_of(state.model, state.step)
            loss.register_hook(lambda _: fate.meets(state.step, "backward"))  # type: ignore[no-untyped-call]
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(state.model.parameters(), 0.5)
            state.optimizer.step()
            state.scheduler.step()
            state.step += 1
            if state.step % 5 == 0:
                state.commit()
            else:
                state.check_host_updates()

    train(state)
    return fingerprint(state)


def half_sealed(fate: Fate) -> str:
    """The same, where some members of the first round do not come to know that a seal is complete before one dies."""
    steps = [0]

    def seal(wish: bool, real: Callable[[bool], bool] = sharded_state.sealed) -> bool:
        answer = real(wish)
        steps[0] += 1
        if steps[0] == SLOW_AT + 1 and context.assignment().round_id == RoundId(1, 1):
            if edriver.rank() in SLOW:
                dist.recv(torch.empty(1), VICTIM)
            elif edriver.rank() == VICTIM:
                fate.meets(SLOW_AT, "in the seal")
        return answer

    sharded_state.sealed = seal
    return hsdp(fate)


def overwritten(fate: Fate) -> str:
    """The same, where the script writes to its parameters before a step."""
    return hsdp(fate, writes_at=3)


def cut_short(fate: Fate) -> str:
    """The same, where a worker may die in a round's cut: before it sends what others need, or once it has its own."""

    module: Any = elastic_shards

    def reshard(*args: Any, real: Callable[..., Any] = module.reshard) -> Any:
        number = context.assignment().round_id.n
        fate.meets(number, "cutting")
        sends = real(*args)
        fate.meets(number, "cut")
        return sends

    module.reshard = reshard
    return hsdp(fate)
