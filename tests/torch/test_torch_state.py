"""TorchState: what a commit keeps and a restore brings back, bit for bit and in place."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DistributedSampler

from edriver.worker.state import handlers
from edriver.worker.state.handlers import StateHandler, handler_for, register_handler
from edriver.worker.state.torch_state import TorchState
from tests.torch.fingerprint import fingerprint, tree_fingerprint


def new_model() -> torch.nn.Sequential:
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 2))


def new_state(**objects: Any) -> TorchState:
    model = new_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2)
    return TorchState(model, optimizer, scheduler=scheduler, step=0, **objects)


def loss_of(state: TorchState) -> torch.Tensor:
    generator = torch.Generator().manual_seed(state.step)
    dtype = next(state.model.parameters()).dtype
    return torch.as_tensor(state.model(torch.randn(6, 4, generator=generator).to(dtype)).square().sum())


def train(state: TorchState, steps: int) -> None:
    for _ in range(steps):
        state.optimizer.zero_grad()
        loss = loss_of(state)
        loss.backward()  # type: ignore[no-untyped-call]
        state.optimizer.step()
        if state.scheduler is not None:
            plateau = isinstance(state.scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)
            state.scheduler.step(*([loss.item()] if plateau else []))
        state.step += 1


OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "adam": lambda params: torch.optim.Adam(params, lr=0.1),
    "amsgrad": lambda params: torch.optim.AdamW(params, lr=0.1, amsgrad=True),
    "tensor-lr": lambda params: torch.optim.Adam(params, lr=torch.tensor(0.1), foreach=False),
    "momentum": lambda params: torch.optim.SGD(params, lr=0.01, momentum=0.9),
    "plain-sgd": lambda params: torch.optim.SGD(params, lr=0.01),
    "rmsprop": lambda params: torch.optim.RMSprop(params, lr=0.01, centered=True),
    "rprop": lambda params: torch.optim.Rprop(params, lr=0.01),
}

SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "none": lambda optimizer: None,
    "step": lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, step_size=2),
    "plateau": lambda optimizer: torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=1e9),
    "one-cycle": lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=20),
    "multi-step": lambda optimizer: torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[2, 4]),
    "sequential": lambda optimizer: torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [
            torch.optim.lr_scheduler.ConstantLR(optimizer, total_iters=2),
            torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5),
        ],
        milestones=[3],
    ),
}


def check_restores(state: TorchState, before: int) -> None:
    """Restoring, and training on from there, gives the same bits as before; the commit survives both."""
    train(state, before)
    state.commit()
    committed = fingerprint(state)
    train(state, 3)
    further = fingerprint(state)
    assert further != committed
    for _ in range(2):
        state.restore()
        assert fingerprint(state) == committed
        train(state, 3)
        assert fingerprint(state) == further


@pytest.mark.parametrize("before", [0, 3], ids=["before-the-first-step", "later"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_are_restored_bit_for_bit(name: str, before: int) -> None:
    model = new_model()
    check_restores(TorchState(model, OPTIMIZERS[name](model.parameters()), scheduler=None, step=0), before)


@pytest.mark.parametrize("before", [0, 3], ids=["before-the-first-step", "later"])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers_are_restored_bit_for_bit(name: str, before: int) -> None:
    model = new_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    check_restores(TorchState(model, optimizer, scheduler=SCHEDULERS[name](optimizer), step=0), before)


def test_parameters_of_small_types_keep_their_optimizers_own_types() -> None:
    model = new_model().bfloat16()
    state = TorchState(model, torch.optim.Adam(model.parameters()), scheduler=None, step=0)
    train(state, 1)
    for per_param in state.optimizer.state.values():
        per_param["exp_avg"] = per_param["exp_avg"].float() + 1e-7
    state.commit()
    committed = fingerprint(state)
    for per_param in state.optimizer.state.values():
        per_param["exp_avg"].zero_()
    state.restore()
    assert fingerprint(state) == committed


def test_a_restore_to_before_the_first_step_empties_the_optimizer() -> None:
    state = new_state()
    state.commit()
    train(state, 2)
    state.restore()
    assert state.optimizer.state_dict()["state"] == {}
    assert state.optimizer.param_groups[0]["lr"] == 0.1


def pointers(state: TorchState) -> list[int]:
    tensors = list(state.model.state_dict().values())
    for per_param in state.optimizer.state.values():
        tensors += per_param.values()
    return [tensor.data_ptr() for tensor in tensors]


def test_tensors_stay_where_they_are() -> None:
    state = new_state()
    train(state, 1)
    state.commit()
    train(state, 1)
    before, param = pointers(state), state.model[0].weight
    state.restore()
    assert pointers(state) == before
    assert state.model[0].weight is param
    assert state.optimizer.param_groups[0]["params"][0] is param


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the names of all tensor operations."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def test_a_save_in_steady_state_allocates_no_tensor() -> None:
    state = new_state(ema=torch.zeros(3), history=[torch.ones(2)])
    train(state, 1)
    state.save()
    train(state, 1)
    with Operations() as operations:
        state.save()
    assert operations.names == {"detach", "copy_"}
    with Operations() as operations:
        state.ema = torch.zeros(4)
        state.save()
    assert operations.names > {"detach", "copy_"}, "a new shape needs a new buffer"


def test_after_a_restore_there_are_no_gradients() -> None:
    state = new_state()
    state.commit()
    loss_of(state).backward()  # type: ignore[no-untyped-call]
    state.restore()
    assert all(param.grad is None for param in state.model.parameters())


def test_gradients_are_cleared_without_a_commit_and_without_a_model() -> None:
    model = new_model()
    state = TorchState(optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    model(torch.ones(2, 4)).sum().backward()
    assert not state.has_commit
    state.clear_gradients()
    assert all(param.grad is None for param in model.parameters())


def test_a_failing_save_leaves_the_last_commit_whole() -> None:
    state = new_state(thing=None)
    state.commit()
    committed = fingerprint(state)
    train(state, 1)
    state.thing = threading.Lock()
    with pytest.raises(TypeError, match="attribute 'thing' cannot be copied"):
        state.commit()
    state.restore()
    assert fingerprint(state) == committed


def test_tied_weights_share_a_buffer_and_stay_tied() -> None:
    one, two = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
    two.weight = one.weight
    model = torch.nn.ModuleDict({"one": one, "two": two})
    state = TorchState(model)
    state.commit()
    saved = state._saved
    assert saved is not None
    weights = saved["model"][1]["state"]
    assert weights["one.weight"] is weights["two.weight"]
    with torch.no_grad():
        one.weight.zero_()
    state.restore()
    assert one.weight is two.weight
    assert one.weight.abs().sum() > 0


def test_a_tensor_attribute_is_written_in_place() -> None:
    ema = torch.arange(3.0)
    state = TorchState(ema=ema, both={"a": ema})
    state.commit()
    ema.zero_()
    state.restore()
    assert state.ema is ema
    assert state.both["a"] is ema
    assert ema.tolist() == [0.0, 1.0, 2.0]


def test_what_is_restored_shares_nothing_with_the_commit() -> None:
    state = TorchState(ema=torch.zeros(2), history=[torch.ones(2)], expanded=torch.ones(1).expand(3))
    state.commit()
    state.ema = torch.zeros(5)  # another shape: nothing to write into
    for _ in range(2):
        state.restore()
        assert state.ema.tolist() == [0.0, 0.0]
        assert state.history[0].tolist() == [1.0, 1.0]
        assert state.expanded.tolist() == [1.0, 1.0, 1.0]
        state.ema.fill_(9)
        state.history[0].fill_(9)
        state.history.append(torch.ones(1))


def test_two_saved_tensors_never_go_to_one_place() -> None:
    state = TorchState(pair={"a": torch.zeros(2), "b": torch.ones(2)})
    state.commit()
    same = torch.full((2,), 5.0)
    state.pair = {"a": same, "b": same}
    state.restore()
    assert [state.pair["a"].tolist(), state.pair["b"].tolist()] == [[0.0, 0.0], [1.0, 1.0]]


def test_a_new_model_takes_the_old_ones_place() -> None:
    state = TorchState(new_model())
    state.commit()
    state.model = torch.nn.Linear(2, 2)
    state.commit()
    with torch.no_grad():
        state.model.weight.zero_()
    state.restore()
    assert state.model.weight.abs().sum() > 0


def test_a_model_may_be_set_later() -> None:
    state = TorchState(step=0)
    state.commit()
    model = torch.nn.Linear(2, 2)
    state.model = model
    state.commit()
    before = tree_fingerprint(model.state_dict())
    with torch.no_grad():
        model.weight.zero_()
    state.restore()
    assert state.model is model
    assert tree_fingerprint(model.state_dict()) == before


def test_another_models_commit_is_refused_with_its_keys() -> None:
    state = TorchState(torch.nn.Linear(2, 2))
    state.commit()
    state.model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"'model' cannot be restored.*0\.weight is missing.*weight is not in"):
        state.restore()


def test_groups_added_after_the_commit_go_again() -> None:
    one, two = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(one.parameters(), lr=0.1)
    state = TorchState(optimizer=optimizer)
    state.commit()
    optimizer.add_param_group({"params": list(two.parameters())})
    state.restore()
    assert len(optimizer.param_groups) == 1
    state.optimizer = torch.optim.SGD([one.weight])
    with pytest.raises(ValueError, match=r"'optimizer' cannot be restored.*groups have \[1\].*\[2\]"):
        state.restore()


def test_an_optimizer_that_loads_in_its_own_way_is_left_to_it() -> None:
    class Counting(torch.optim.SGD):
        extra = 0

        def state_dict(self) -> dict[str, Any]:
            return {**super().state_dict(), "extra": self.extra}

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            self.extra = state_dict["extra"]

    optimizer = Counting(torch.nn.Linear(2, 2).parameters())
    state = TorchState(optimizer=optimizer)
    optimizer.extra = 4
    state.commit()
    optimizer.extra = 5
    state.restore()
    assert optimizer.extra == 4


def test_extra_state_of_modules_is_kept() -> None:
    class Counter(torch.nn.Module):
        counts: list[int]

        def get_extra_state(self) -> list[int]:
            return self.counts

        def set_extra_state(self, state: list[int]) -> None:
            self.counts = state

    model = Counter()
    model.counts = [1]
    state = TorchState(model)
    state.commit()
    for _ in range(2):
        model.counts.append(2)
        state.restore()
        assert model.counts == [1]


def test_anything_with_state_dict_and_load_state_dict_is_handled() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    state = TorchState(scaler=scaler)
    state.commit()
    scaler.scale(torch.ones(1))
    scaler.update(2.0)
    state.restore()
    assert scaler.get_scale() == 8.0
    assert state.scaler is scaler


def test_the_most_specific_handler_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "_registry", dict(handlers._registry))

    class Base:
        total = 0

    class Derived(Base):
        pass

    class TotalHandler(StateHandler):
        def capture(self) -> Any:
            return {"total": self.value.total}

        def load(self, tree: Any) -> None:
            self.value.total = tree["total"]

    class Other(TotalHandler):
        pass

    register_handler(Base, TotalHandler)
    assert type(handler_for(Derived())) is TotalHandler
    register_handler(Derived, Other)
    assert type(handler_for(Derived())) is Other
    assert type(handler_for(Base())) is TotalHandler
    assert handler_for({"total": 1}) is None
    assert handler_for(torch.nn.Module) is None, "a class is not its instance"
    value = Derived()
    state = TorchState(value=value)
    state.commit()
    value.total = 3
    state.restore()
    assert (state.value is value, value.total) == (True, 0)


def test_digests_have_no_tensors_and_no_models() -> None:
    state = new_state(ema=torch.ones(2), losses=[torch.ones(1)])
    train(state, 2)
    state.commit()
    train(state, 1)
    assert state.digest(committed=True) == "step=2"
    assert state.digest(committed=False) == "step=3"


@pytest.mark.usefixtures("group")
def test_a_wrapped_model_is_kept_without_its_wrapper() -> None:
    model = new_model()
    state = TorchState(model, scheduler=None, step=0)
    state.save()
    for _ in range(2):
        state.model = DistributedDataParallel(state.model)
        state.optimizer = torch.optim.SGD(state.model.parameters(), lr=0.1)
        train(state, 1)
        state.commit()
        committed = tree_fingerprint(model.state_dict())
        train(state, 1)
        state.restore()
        assert tree_fingerprint(model.state_dict()) == committed
        state.on_reset()
        assert state.model is model


@pytest.mark.usefixtures("group")
@pytest.mark.filterwarnings("ignore:.*torch.jit.* is deprecated")  # of torch's own import
def test_sharded_state_is_refused_with_the_reason() -> None:
    mesh = init_device_mesh("cpu", (1,))
    sharded = torch.nn.Sequential(torch.nn.Linear(2, 2))
    fully_shard(sharded[0], mesh=mesh)
    with pytest.raises(TypeError, match=r"module '0' is sharded by fully_shard: .* edriver\.ShardedState"):
        TorchState(sharded)
    distributed = torch.nn.Linear(2, 2)
    weight: DTensor = distribute_tensor(distributed.weight, mesh, [Replicate()])
    distributed.weight = torch.nn.Parameter(weight)
    with pytest.raises(TypeError, match=r"tensor 'weight' is a DTensor: .*DistributedDataParallel"):
        TorchState(distributed)
    with pytest.raises(TypeError, match=r"a parameter of this SGD is a DTensor: .*restart mode"):
        TorchState(optimizer=torch.optim.SGD([distributed.weight]))
    from torch.distributed.optim import ZeroRedundancyOptimizer

    zero = ZeroRedundancyOptimizer(new_model().parameters(), optimizer_class=torch.optim.Adam)
    state = TorchState()
    with pytest.raises(TypeError, match="ZeroRedundancyOptimizer shards"):
        state.optimizer = zero
    assert state.optimizer is None


def test_a_distributed_sampler_is_refused() -> None:
    with pytest.raises(TypeError, match=r"use edriver\.ElasticSampler"):
        TorchState(sampler=DistributedSampler(range(4), num_replicas=2, rank=0))  # type: ignore[arg-type]


@pytest.mark.parametrize("container", [lambda model: [model], lambda model: {"a": model}], ids=["list", "dict"])
def test_models_inside_containers_are_refused(container: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match=r"'models' holds a Linear inside a (list|dict): give each model"):
        TorchState(models=container(torch.nn.Linear(1, 1)))


def test_a_lazy_module_that_was_not_called_is_refused_by_name() -> None:
    net = torch.nn.Sequential(torch.nn.LazyLinear(2), torch.nn.LazyBatchNorm1d())
    with pytest.raises(
        TypeError, match=r"the state's 'net' has lazy modules .* '0\.weight' has no shape yet\. Call the"
    ):
        TorchState(net=net)
    with pytest.raises(TypeError, match=r"'net' has lazy modules .* 'running_mean' has no shape yet"):
        TorchState(net=torch.nn.LazyBatchNorm1d(affine=False))
    net(torch.ones(3, 4))
    TorchState(net=net).commit()
