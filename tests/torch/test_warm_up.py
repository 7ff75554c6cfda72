"""The first step in miniature leaves no trace but a warm process."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.distributed import distributed_c10d as c10d
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from edriver.worker.backend import process_modes
from edriver.worker.group import warm_up as warm_up_module
from edriver.worker.group.warm_up import take_first_step, warm_up
from tests import needs


@pytest.mark.parametrize("prepare", [warm_up, take_first_step.__wrapped__])
def test_the_warm_up_leaves_no_trace_for_the_script(prepare: Callable[[], object]) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    prepare()
    assert torch.equal(torch.get_rng_state(), before)
    assert not dist.is_initialized()
    assert c10d._world.group_count == 0, "the next group's name must be the same as on other workers"


OWN_STEP = """
import torch
from edriver.worker.group.warm_up import take_first_step, warm_up
warm_up()
take_first_step.__wrapped__()

class Own(torch.optim.Adam):
    def step(self, closure=None):
        return super().step(closure)

called = []
optimizer = Own([torch.nn.Parameter(torch.ones(1))])
optimizer.register_step_pre_hook(lambda *_: called.append(1))
optimizer.step()
print(len(called))
"""


def test_the_hooks_of_a_scripts_own_optimizer_are_called_as_often_as_without() -> None:
    ran = subprocess.run([sys.executable, "-c", OWN_STEP], capture_output=True, text=True, check=True)
    assert ran.stdout == "1\n"


def test_a_group_of_the_scripts_own_is_left_alone() -> None:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        warm_up()
        take_first_step.__wrapped__()
        assert dist.is_initialized()
    finally:
        dist.destroy_process_group()


FAULTS = """
import resource, torch
from edriver.worker.group.warm_up import warm_up
warm_up()

def faults(blocks, size):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    kept = [torch.zeros(size, dtype=torch.uint8) for _ in range(blocks)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

"""


def page_faults(source: str, environ: Mapping[str, str]) -> int:
    plain = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
    command = [sys.executable, "-c", FAULTS + source]
    done = subprocess.run(command, env={**plain, **environ}, stdout=subprocess.PIPE, check=True, timeout=300)
    return int(done.stdout)


@pytest.mark.needs(needs.GLIBC)  # another C library keeps its memory in another way
def test_allocations_after_the_warm_up_reuse_its_memory() -> None:
    assert page_faults("print(faults(24, 2**20))", {}) < 1000, "24 MiB have 6144 pages"


@pytest.mark.needs(needs.GLIBC)
def test_later_steps_reuse_the_memory_of_those_before() -> None:
    # What is small and stays keeps blocks apart: the heap grows in the second step, and seldom in the third, too.
    tenth = "[faults(12, 2**24) for _ in range(9)]; print(faults(12, 2**24))"
    assert page_faults(tenth, {}) < 12000, "192 MiB have 49152 pages"
    assert page_faults(tenth, {"MALLOC_TRIM_THRESHOLD_": "1000000"}) > 40000, "as the user has it"


@pytest.mark.needs(needs.GLIBC)
def test_a_heap_that_was_filled_serves_a_first_step() -> None:
    step = "print(faults(12, 2**24))"
    filled = "from edriver.worker.backend.heap import fill_heap; fill_heap(224 * 2**20);"
    assert page_faults(step, {}) > 35000, "192 MiB have 49152 pages"
    # What is small and stays from before may keep a part of the heap too small for another block.
    assert page_faults(filled + step, {}) < 12000


def test_what_a_script_warms_up_with_is_called_once_and_leaves_the_state_as_it_was() -> None:
    source = """
import torch, torch.distributed as dist, edriver
torch.manual_seed(3)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters())
state = edriver.TorchState(model=model, optimizer=optimizer, steps=0)
state.steps = 7
before, random = model.weight.detach().clone(), torch.get_rng_state()

def warm_up(state):
    assert dist.get_world_size() == 1 and (edriver.rank(), edriver.size()) == (0, 1)
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    model(torch.randn(2, 4)).sum().backward()
    state.steps += 1
    state.commit()
    print("warm")

@edriver.run(warm_up=warm_up)
def train(state):
    assert torch.equal(model.weight, before) and torch.equal(torch.get_rng_state(), random)
    assert state.steps == 7 and not optimizer.state and model.weight.grad is None
    print("train")

train(state)
train(state)
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["warm", "train", "train"]


def met(*_: Any, **__: Any) -> None:
    raise AssertionError("a hook of the script's has met what edriver computes")


@contextlib.contextmanager
def a_hook_for_all_modules(register: Callable[[Any], Any]) -> Iterator[None]:
    handle = register(met)
    try:
        yield
        assert handle.id in handle.hooks_dict_ref(), "the hook is gone"
    finally:
        handle.remove()


HOOKS: list[Any] = [
    modules.register_module_forward_hook,
    modules.register_module_forward_pre_hook,
    modules.register_module_full_backward_hook,
    modules.register_module_full_backward_pre_hook,
    modules.register_module_buffer_registration_hook,
    modules.register_module_module_registration_hook,
    modules.register_module_parameter_registration_hook,
    optimizers.register_optimizer_step_pre_hook,
    optimizers.register_optimizer_step_post_hook,
]


@contextlib.contextmanager
def set_for_the_process(set_it: Callable[[], object]) -> Iterator[None]:
    before = process_modes.current()
    set_it()
    try:
        yield
    finally:
        process_modes.enter(before)


@contextlib.contextmanager
def a_loader_of_the_scripts_own() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.utils.data.DataLoader, "__iter__", met)
        patch.setattr(torch.nn.Linear, "forward", met)
        yield


@contextlib.contextmanager
def warnings_as_errors() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


class MetFunctions(TorchFunctionMode):
    def __torch_function__(self, *_: Any, **__: Any) -> Any:
        met()


class MetOperators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __torch_dispatch__(self, *_: Any, **__: Any) -> Any:
        met()


SETTINGS: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    **{hook.__name__: partial(a_hook_for_all_modules, hook) for hook in HOOKS},
    "grad": lambda: set_for_the_process(lambda: torch.set_grad_enabled(False)),
    "dtype": lambda: set_for_the_process(lambda: torch.set_default_dtype(torch.float16)),
    "device": lambda: set_for_the_process(lambda: torch.set_default_device("meta")),
    "deterministic": lambda: set_for_the_process(lambda: torch.use_deterministic_algorithms(True)),
    "autocast": lambda: set_for_the_process(lambda: torch.set_autocast_enabled("cpu", True)),
    "inference": torch.inference_mode,
    "anomaly": lambda: torch.autograd.set_detect_anomaly(True),
    "functions": MetFunctions,
    "operators": MetOperators,
    "loader": a_loader_of_the_scripts_own,
    "warnings": warnings_as_errors,
}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("prepare", [warm_up, take_first_step.__wrapped__])
def test_nothing_that_a_script_has_set_reaches_it(
    prepare: Callable[[], object], setting: str, caplog: pytest.LogCaptureFixture
) -> None:
    with SETTINGS[setting](), caplog.at_level(logging.WARNING):
        before = process_modes.current()
        assert prepare() in (None, frozenset())
        assert process_modes.current() == before
    assert caplog.messages == []


def test_a_first_step_that_fails_is_said_in_a_line(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise ZeroDivisionError("not\nin this torch")

    monkeypatch.setattr(warm_up_module, "_TinyAdam", refuse)
    take_first_step.__wrapped__()
    (line,) = caplog.messages
    assert "(ZeroDivisionError: not in this torch)" in line
    assert not dist.is_initialized()
