"""Training scripts of the kinds that people write, each a few lines, as workers run them (elastic_world.py)."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

import edriver
from tests.torch.elastic_world import Fate, Script
from tests.torch.fingerprint import fingerprint

STEPS = 16


DEVICE_VARIABLE = "EDRIVER_TEST_DEVICE"


def device() -> str:
    """Where models and batches lie: cpu, unless tests of a GPU say otherwise."""
    return os.environ.get(DEVICE_VARIABLE, "cpu")


def new_model() -> torch.nn.Sequential:
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    return model.to(device())


def batch_of(step: int) -> torch.Tensor:
    """The same on every rank."""
    return torch.randn(6, 4, generator=torch.Generator().manual_seed(step)).to(device())


def backward(loss: torch.Tensor, fate: Fate, step: int) -> None:
    """The backward pass, at whose beginning a worker may die."""
    loss.register_hook(lambda _: fate.meets(step, "backward"))  # type: ignore[no-untyped-call]
    loss.backward()  # type: ignore[no-untyped-call]


def train(state: edriver.TorchState, fate: Fate, step_of: Callable[[Any, edriver.TorchState, int], None]) -> str:
    """Run an elastic loop of STEPS steps; returns the fingerprint of the state at its end."""

    @edriver.run
    def loop(state: edriver.TorchState) -> None:
        model = DistributedDataParallel(state.model, init_sync=False)
        while state.step < STEPS:
            fate.before(state.step)
            step_of(model, state, state.step)
            state.step += 1
            state.check_host_updates()

    loop(state)
    return fingerprint(state)


def watched(optimizer: Optimizer, fate: Fate, state: edriver.TorchState) -> None:
    """Have a worker die inside the optimizer's step, if that is its fate."""
    optimizer.register_step_pre_hook(lambda *_: fate.meets(state.step, "optimizer"))


def adam(fate: Fate, after: Callable[[], object] = lambda: None) -> str:
    """The plain kind; `after` each step something else is asked of the device."""
    model = new_model()
    state = edriver.TorchState(model, torch.optim.Adam(model.parameters(), lr=0.1), step=0)
    watched(state.optimizer, fate, state)

    def step(model: Any, state: edriver.TorchState, at: int) -> None:
        state.optimizer.zero_grad()
        backward(model(batch_of(at)).square().sum(), fate, at)
        state.optimizer.step()
        after()

    return train(state, fate, step)


def closure(fate: Fate) -> str:
    """As Lightning's automatic optimization does it: the whole step is the optimizer's closure."""
    model = new_model()
    state = edriver.TorchState(model, torch.optim.Adam(model.parameters(), lr=0.1), step=0)

    def step(model: Any, state: edriver.TorchState, at: int) -> None:
        def compute() -> torch.Tensor:
            state.optimizer.zero_grad()
            loss: torch.Tensor = model(batch_of(at)).square().sum()
            backward(loss, fate, at)
            fate.meets(at, "optimizer")
            return loss

        state.optimizer.step(compute)

    return train(state, fate, step)


def scaler_off(fate: Fate) -> str:
    """A GradScaler that is switched off, as scripts have it for bfloat16."""
    return scaled(fate, torch.amp.GradScaler(device(), enabled=False), torch.bfloat16)


def scaler_fp16(fate: Fate) -> str:
    """The scale grows every three steps until gradients overflow, and a step is skipped."""
    return scaled(fate, torch.amp.GradScaler(device(), init_scale=2.0**12, growth_interval=3), torch.float16)


def scaled(fate: Fate, scaler: torch.amp.GradScaler, dtype: torch.dtype, fused: bool = False) -> str:
    model = new_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, fused=fused)
    state = edriver.TorchState(model, optimizer, scaler=scaler, step=0)
    watched(state.optimizer, fate, state)

    def step(model: Any, state: edriver.TorchState, at: int) -> None:
        state.optimizer.zero_grad()
        with torch.autocast(device(), dtype):
            loss = model(batch_of(at)).square().sum()
        backward(state.scaler.scale(loss), fate, at)
        state.scaler.unscale_(state.optimizer)
        state.scaler.step(state.optimizer)
        state.scaler.update()

    return train(state, fate, step)


def thawing(fate: Fate) -> str:
    """The last layer begins to learn later: its parameters are added to the optimizer as another group."""
    model = new_model()
    model[3].requires_grad_(False)
    state = edriver.TorchState(model, torch.optim.Adam(model[:2].parameters(), lr=0.1), step=0)
    watched(state.optimizer, fate, state)

    def step(model: Any, state: edriver.TorchState, at: int) -> None:
        if at == 2 and len(state.optimizer.param_groups) == 1:
            state.model[3].requires_grad_(True)
            state.optimizer.add_param_group({"params": list(state.model[3].parameters()), "lr": 0.2})
        state.optimizer.zero_grad()
        backward(model(batch_of(at)).square().sum(), fate, at)
        state.optimizer.step()

    return train(state, fate, step)


def best(fate: Fate) -> str:
    """An attribute that rank 0 alone computes: the others have another value at each boundary."""
    model = new_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    state = edriver.TorchState(model, optimizer, step=0, best=1e9, from_rank_0=("best",))
    watched(state.optimizer, fate, state)

    def step(model: Any, state: edriver.TorchState, at: int) -> None:
        state.optimizer.zero_grad()
        loss = model(batch_of(at)).square().sum()
        backward(loss, fate, at)
        state.optimizer.step()
        if edriver.rank() == 0:
            state.best = min(state.best, loss.item())

    train(state, fate, step)
    state.best = 0.0
    return fingerprint(state)


def torchrun(fate: Fate) -> str:
    """What was written for torchrun makes the process group, and destroys it, in its training function."""
    model = new_model()
    state = edriver.TorchState(model, torch.optim.Adam(model.parameters(), lr=0.1), step=0)
    watched(state.optimizer, fate, state)

    @edriver.run
    def loop(state: edriver.TorchState) -> None:
        dist.init_process_group("gloo" if device() == "cpu" else "cpu:gloo,cuda:nccl")
        model = DistributedDataParallel(state.model)
        while state.step < STEPS:
            fate.before(state.step)
            state.optimizer.zero_grad()
            backward(model(batch_of(state.step)).square().sum(), fate, state.step)
            state.optimizer.step()
            state.step += 1
            state.check_host_updates()
        dist.destroy_process_group()

    loop(state)
    dist.destroy_process_group()
    return fingerprint(state)


def metric(fate: Fate) -> str:
    """A loss that is reduced after the step: a loss there finds all others torn."""
    model = new_model()
    state = edriver.TorchState(model, torch.optim.Adam(model.parameters(), lr=0.1), step=0)

    def step(model: Any, state: edriver.TorchState, at: int) -> None:
        state.optimizer.zero_grad()
        loss = model(batch_of(at)).square().sum()
        backward(loss, fate, at)
        state.optimizer.step()
        fate.meets(at, "late")
        dist.all_reduce(loss.detach())

    return train(state, fate, step)


def lbfgs(fate: Fate) -> str:
    """Computes gradients several times in a step: all are torn from the second time on."""
    model = new_model()[0]
    state = edriver.TorchState(model, torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3), step=0)

    def step(model: Any, state: edriver.TorchState, at: int) -> None:
        calls = 0

        def compute() -> torch.Tensor:
            nonlocal calls
            calls += 1
            if calls == 2:
                fate.meets(at, "late")
            state.optimizer.zero_grad()
            loss: torch.Tensor = model(batch_of(at)).square().sum()
            backward(loss, fate, at)
            return loss

        state.optimizer.step(compute)

    return train(state, fate, step)


def adversarial(fate: Fate) -> str:
    """Two models and optimizers that take turns in a step."""
    one, two = new_model(), torch.nn.Linear(2, 2)
    first, second = (torch.optim.Adam(model.parameters(), lr=0.1) for model in (one, two))
    state = edriver.TorchState(one, first, other=two, other_optimizer=second, step=0)
    wrapped: dict[int, Any] = {}

    def step(model: Any, state: edriver.TorchState, at: int) -> None:
        if model not in wrapped.values():
            wrapped.clear()
            wrapped[0] = model
            wrapped[1] = DistributedDataParallel(state.other, init_sync=False)
        second.zero_grad()
        backward(wrapped[1](model(batch_of(at)).detach()).square().sum(), fate, at)
        second.step()
        fate.meets(at, "late")
        first.zero_grad()
        model(batch_of(at)).square().sum().backward()
        first.step()

    return train(state, fate, step)


def cadence(fate: Fate) -> str:
    """A second optimizer steps with every second batch only: in between, its gradients are all that there is of one."""
    model = new_model()
    fast = torch.optim.Adam(model[:2].parameters(), lr=0.1)
    slow = torch.optim.Adam(model[3].parameters(), lr=0.1)
    state = edriver.TorchState(model, fast, slow=slow, step=0)

    def step(model: Any, state: edriver.TorchState, at: int) -> None:
        fast.zero_grad()
        loss = model(batch_of(at)).square().sum()
        fate.meets(at, "late")
        backward(loss, fate, at)
        fast.step()
        if at % 2:
            slow.step()
            slow.zero_grad()

    return train(state, fate, step)


def history(fate: Fate) -> str:
    """An attribute that is too large for a boundary."""
    model = new_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    state = edriver.TorchState(model, optimizer, step=0, history=list(range(10_000)))

    def step(model: Any, state: edriver.TorchState, at: int) -> None:
        state.optimizer.zero_grad()
        loss = model(batch_of(at)).square().sum()
        fate.meets(at, "late")
        backward(loss, fate, at)
        state.optimizer.step()
        state.history.append(at)

    return train(state, fate, step)


def sharded(fate: Fate) -> str:
    """Shards the model inside the training function."""
    model = new_model()
    state = edriver.TorchState(model, torch.optim.SGD(model.parameters(), lr=0.1), step=0)

    def step(_model: Any, state: edriver.TorchState, at: int) -> None:
        fully_shard(state.model)

    return train(state, fate, step)


def validates(fate: Fate) -> str:
    """A part of the model is frozen for good; a validation, in which a worker may die, sets other modes."""
    model = new_model()
    state = edriver.TorchState(model, torch.optim.Adam(model.parameters(), lr=0.1), step=0)

    def validate(at: int) -> None:
        trained = [part.training for part in model.modules()]
        model.eval()
        torch.set_grad_enabled(False)
        dist.all_reduce(torch.ones(1))
        fate.meets(at, "validation")
        dist.all_reduce(torch.ones(1))
        torch.set_grad_enabled(True)
        for part, trains in zip(model.modules(), trained, strict=True):
            part.training = trains

    def step(model: Any, state: edriver.TorchState, at: int) -> None:
        if at == 2:
            state.model[1].eval()
        if at == 6:
            validate(at)
        state.optimizer.zero_grad()
        model(batch_of(at)).square().sum().backward()
        state.optimizer.step()

    return train(state, fate, step)


KINDS: dict[str, Script] = {
    kind.__name__: kind for kind in (adam, closure, scaler_off, scaler_fp16, thawing, best, torchrun)
}
"""Nothing is lost of these."""

EXPOSED: dict[str, Script] = {kind.__name__: kind for kind in (metric, lbfgs, adversarial, cadence, history)}
"""These have a place in each step, "late", at which a loss leads back to the last commit."""
