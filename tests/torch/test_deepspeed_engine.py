"""DeepSpeed's engine as a value of a script's state: a stand-in, which divides its optimizer's state as ZeRO does."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore

import edriver
from edriver.checkpoints import Checkpoints
from tests.torch.fake_memory import digest, join_round
from tests.torch.ranks import run_ranks


class DeepSpeedZeroOptimizer:
    """As in stages 1 and 2: a flat tensor has this rank's part of the parameters, and `optimizer` its state."""

    __module__ = "deepspeed.runtime.zero.stage_1_and_2"

    def __init__(self, module: nn.Linear, rank: int, size: int) -> None:
        self.module, self.rank, self.size = module, rank, size
        part = torch.cat([parameter.detach().flatten() for parameter in module.parameters()]).chunk(size)[rank]
        self.part = part.clone().requires_grad_()
        self.optimizer = torch.optim.AdamW([self.part], lr=0.01)
        self.loss_scaler = {"cur_scale": 1.0}

    @property
    def param_groups(self) -> Any:
        return self.optimizer.param_groups

    def state_dict(self) -> dict[str, Any]:
        raise AssertionError("it is of this rank alone")

    load_state_dict = state_dict

    def step(self) -> None:
        self.part.grad = torch.full_like(self.part, self.rank + 1.0)
        self.optimizer.step()
        parts = [torch.empty_like(self.part) for _ in range(self.size)]
        dist.all_gather(parts, self.part.detach())
        nn.utils.vector_to_parameters(torch.cat(parts), self.module.parameters())


class DeepSpeedEngine(nn.Module):
    """What `deepspeed.initialize` returns."""

    __module__ = "deepspeed.runtime.engine"

    def __init__(self, seed: int, rank: int = 0, size: int = 1, stage: int = 1) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.module = nn.Linear(5, 6)  # 36 parameters
        self.optimizer = DeepSpeedZeroOptimizer(self.module, rank, size)
        self.lr_scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer.optimizer, 1)
        self.global_steps = self.global_samples = self.skipped_steps = self.micro_steps = 0
        self.stage, self.pipeline_parallelism, self.has_moe_layers, self.mp_world_size = stage, False, False, 1

    def zero_optimization_stage(self) -> int:
        return self.stage

    def step(self) -> None:
        self.optimizer.step()
        self.lr_scheduler.step()
        self.global_steps += 1
        self.optimizer.loss_scaler["cur_scale"] *= 2

    def digest(self) -> str:
        """Of all that this rank has."""
        (moments,) = self.optimizer.optimizer.state.values()
        rest = {"groups": self.optimizer.optimizer.state_dict()["param_groups"], "steps": self.global_steps}
        scaled = {"scale": self.optimizer.loss_scaler, "rate": self.lr_scheduler.state_dict()}
        return digest({**self.module.state_dict(), **moments, "part": self.optimizer.part, **rest, **scaled})


def _trained(folder: Path, rank: int, *, size: int, n: int, first: int) -> tuple[int | None, str, str]:
    """The step that was loaded; this rank's state then, and at the end."""
    join_round(folder, rank, size, n, host=f"host{rank % 2}", store=dist.distributed_c10d._get_default_store())
    engine = DeepSpeedEngine(n, rank, size)
    checkpoints = Checkpoints(folder / "disk", every_memory=first)
    step = checkpoints.load({"model": engine})
    loaded = "" if step is None else engine.digest()
    for number in range((step or 0) + 1, first + 1):
        engine.step()
        checkpoints.save(number, {"model": engine})
    dist.barrier()
    return step, loaded, engine.digest()


def test_each_rank_gets_its_own_part_back(tmp_path: Path) -> None:
    before = run_ranks(functools.partial(_trained, tmp_path, size=3, n=1, first=2), 3)
    assert len({end for *_, end in before}) == 3
    after = run_ranks(functools.partial(_trained, tmp_path, size=3, n=2, first=2), 3)
    assert [(step, loaded) for step, loaded, _ in after] == [(2, end) for *_, end in before]


def _other_number(folder: Path, rank: int) -> str:
    join_round(folder, rank, 2, 2, host=f"host{rank % 2}", store=dist.distributed_c10d._get_default_store())
    with pytest.raises(edriver.CheckpointError) as raised:
        Checkpoints(folder / "disk").load({"model": DeepSpeedEngine(2, rank, 2)})
    return str(raised.value)


def test_another_number_of_ranks_is_refused(tmp_path: Path) -> None:
    run_ranks(functools.partial(_trained, tmp_path, size=3, n=1, first=1), 3)
    for rank, said in enumerate(run_ranks(functools.partial(_other_number, tmp_path), 2)):
        assert f"model/partitions.rank{rank}of2_0: in ZeRO each rank has its own" in said


@pytest.mark.usefixtures("group")
def test_what_cannot_be_kept_is_refused(tmp_path: Path) -> None:
    join_round(tmp_path, 0, 1, store=HashStore())
    divided = DeepSpeedEngine(1)
    divided.has_moe_layers = True
    for value, said in (
        (DeepSpeedEngine(1, stage=3), "'model' is a DeepSpeed engine of ZeRO stage 3"),
        (divided, "'model' is a DeepSpeed engine whose model is divided among ranks"),
        (DeepSpeedEngine(1).optimizer, "'model' is an optimizer of DeepSpeed, of which each rank has another part"),
    ):
        with pytest.raises(edriver.CheckpointError, match=said):
            Checkpoints(tmp_path / "disk", every_memory=1).save(1, {"model": value})
