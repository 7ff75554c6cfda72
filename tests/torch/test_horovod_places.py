"""What a script for Horovod makes of its place: the device of its local rank, and HOROVOD_RANK and the like."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler

import edriver.horovod as hvd
from edriver.horovod import devices, distributed_samplers
from edriver.model.ids import RoundId
from edriver.model.plan import NO_ASSIGNMENT, SINGLE_WORKER
from edriver.worker import context

WORKER = {"EDRIVER_WORKER_ID": "3", "EDRIVER_HOST": "b"}


class Gpus:
    """The GPUs that a process sees.

    Args:
        count: how many.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.current = 0

    def set_device(self, device: Any) -> None:
        """As torch.cuda's."""
        number = device if isinstance(device, int) else torch.device(device).index
        if number >= self.count:
            raise RuntimeError("CUDA error: invalid device ordinal")
        self.current = number


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Gpus:
    """In the place of torch.cuda's, as many as the test's parameter says."""
    found = Gpus(getattr(request, "param", 1))
    monkeypatch.setattr(torch.cuda, "set_device", found.set_device)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: found.count)
    return found


@pytest.mark.parametrize(
    "device", [3, 0, "cuda:2", torch.device("cuda", 1)], ids=["local-rank", "its-number", "text", "device"]
)
def test_each_number_means_the_one_gpu_of_the_slot(gpus: Gpus, device: Any) -> None:
    devices.take_local_ranks({**WORKER, "CUDA_VISIBLE_DEVICES": "GPU-8f"})
    devices.take_local_ranks({**WORKER, "CUDA_VISIBLE_DEVICES": "GPU-8f"})
    gpus.current = -1
    torch.cuda.set_device(device)
    assert gpus.current == 0


@pytest.mark.parametrize(
    ("environ", "gpus"),
    [
        pytest.param({"CUDA_VISIBLE_DEVICES": "0"}, 1, id="without-a-driver"),
        pytest.param({**WORKER, "EDRIVER_MODE": "restart", "CUDA_VISIBLE_DEVICES": "0"}, 1, id="restart-mode"),
        pytest.param({**WORKER, "CUDA_VISIBLE_DEVICES": "0,1"}, 2, id="several"),
        pytest.param(WORKER, 1, id="none-was-given"),
        pytest.param({**WORKER, "CUDA_VISIBLE_DEVICES": "0"}, 2, id="the-script-has-chosen-others-since"),
    ],
    indirect=["gpus"],
)
def test_elsewhere_a_number_is_a_devices(gpus: Gpus, environ: dict[str, str]) -> None:
    devices.take_local_ranks(environ)
    torch.cuda.set_device(gpus.count - 1)
    assert gpus.current == gpus.count - 1
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.cuda.set_device(2)


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Any:
    """This process is a worker, which is put into one place after another."""
    for name, value in WORKER.items():
        monkeypatch.setenv(name, value)
    for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE", "HOSTNAME"):
        monkeypatch.setenv(f"HOROVOD_{name}", "of another run")
    rounds = iter(range(1, 100))

    def place(**numbers: Any) -> None:
        context.current.place.enter(replace(SINGLE_WORKER, round_id=RoundId(1, next(rounds)), **numbers))

    return place


def said() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("HOROVOD_")}


def test_the_environment_says_what_holds_in_this_round(worker: Any) -> None:
    worker(rank=2, size=3, local_rank=0, local_size=1, cross_rank=1, cross_size=2)
    hvd.init()
    first = {
        "HOROVOD_RANK": "2",
        "HOROVOD_SIZE": "3",
        "HOROVOD_LOCAL_RANK": "0",
        "HOROVOD_LOCAL_SIZE": "1",
        "HOROVOD_CROSS_RANK": "1",
        "HOROVOD_CROSS_SIZE": "2",
        "HOROVOD_HOSTNAME": "b",
    }
    assert said() == first
    worker(rank=3, size=4, local_rank=1, local_size=2, cross_rank=1, cross_size=2)
    assert said() == {
        **first,
        "HOROVOD_RANK": "3",
        "HOROVOD_SIZE": "4",
        "HOROVOD_LOCAL_RANK": "1",
        "HOROVOD_LOCAL_SIZE": "2",
    }
    context.current.place.enter(NO_ASSIGNMENT)  # it came too late for a run: as rank() and the like have it
    assert (said()["HOROVOD_RANK"], said()["HOROVOD_SIZE"]) == (str(hvd.rank()), str(hvd.size())) == ("1", "2")
    hvd.shutdown()
    worker(rank=0, size=1)
    assert said()["HOROVOD_SIZE"] == "2", "nobody follows after shutdown"
    hvd.init()
    assert said()["HOROVOD_SIZE"] == "1"


@pytest.fixture
def samplers(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's DistributedSampler is afterwards what it was."""
    monkeypatch.setattr(DistributedSampler, "__init__", distributed_samplers._initialize)


def test_a_samplers_share_is_that_of_the_round(worker: Any, samplers: None) -> None:
    data: Any = range(12)
    before: Any = DistributedSampler(data, num_replicas=1, rank=0)
    context.current.place.enter(NO_ASSIGNMENT)  # a worker that was started later
    hvd.init()
    mine: Any = DistributedSampler(data, num_replicas=hvd.size(), rank=hvd.rank(), shuffle=False, seed=5)
    fixed: Any = DistributedSampler(data, num_replicas=6, rank=1)
    loader: Any = DataLoader(data, sampler=mine, batch_size=2)
    mine.set_epoch(3)
    assert (len(loader), list(mine)) == (3, [1, 3, 5, 7, 9, 11])
    worker(rank=2, size=4)
    assert (len(loader), list(mine), mine.epoch, mine.seed) == (2, [2, 6, 10], 3, 5)
    worker(rank=0, size=3)
    assert (len(loader), list(mine)) == (2, [0, 3, 6, 9])
    assert (fixed.num_replicas, before.num_replicas) == (6, 1), "a share of the script's own choice stays"


def test_without_a_driver_the_environment_stays_as_it_is(
    alone: None, worker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker()
    monkeypatch.delenv("EDRIVER_WORKER_ID")
    hvd.init()
    assert {*said().values()} == {"of another run"}
