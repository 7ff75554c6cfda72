"""`edriver.checkpoints.Checkpoints` without edriver's agents: all ranks write to disk, behind training."""

from __future__ import annotations

import functools
import itertools
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import edriver
from edriver.checkpoint_folder.folder import CheckpointFolder
from edriver.checkpoints import Checkpoints
from edriver.worker import context
from edriver.worker.checkpoints.script_disk import DiskSaver
from tests.torch.fake_memory import digest
from tests.torch.ranks import run_ranks


@pytest.fixture(autouse=True)
def without_edriver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "current", context.WorkerContext())


def _state(seed: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return {"rows": distribute_tensor(torch.randn(13, 7, generator=generator), mesh, [Shard(0)]), "epoch": seed}


def _trained(folder: Path, rank: int, *, seed: int, steps: int) -> tuple[int | None, str, str]:
    state = _state(seed)
    checkpoints = Checkpoints(folder, every_disk=2, keep=2)
    first = checkpoints.load(state)
    loaded = digest(state)
    for step in range((first or 0) + 1, steps + 1):
        state["rows"].add_(1)
        state["epoch"] = step
        checkpoints.save(step, state)
        checkpoints.wait()
        dist.barrier()
    return first, loaded, digest(state)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_three_ranks_save_and_two_load_and_so_does_plain_torch(tmp_path: Path) -> None:
    three = run_ranks(functools.partial(_trained, tmp_path, seed=1, steps=8), 3)
    found = CheckpointFolder(str(tmp_path)).found()
    assert [(each.steps, each.whole) for each in found] == [(8, True), (6, True)]
    two = run_ranks(functools.partial(_trained, tmp_path, seed=5, steps=8), 2)
    assert {(first, loaded) for first, loaded, _ in two} == {(8, three[0][2])}
    plain: dict[str, Any] = {"rows": torch.zeros(13, 7), "epoch": 0}
    load(plain, storage_reader=FileSystemReader(tmp_path / found[0].name), no_dist=True)
    assert digest(plain) == three[0][2]


def test_a_process_alone_saves_while_it_trains_on(tmp_path: Path) -> None:
    state: dict[str, Any] = {"value": torch.ones(3), "epoch": 1}
    checkpoints = Checkpoints(tmp_path, every_disk=1)
    assert checkpoints.load(state) is None
    checkpoints.save(1, state)
    state["value"].add_(1)
    checkpoints.wait()
    other: dict[str, Any] = {"value": torch.zeros(3), "epoch": 0}
    assert Checkpoints(tmp_path).load(other) == 1
    assert other["value"].tolist() == [1, 1, 1], "as it was when it was saved"


def test_a_damaged_checkpoint_is_left_for_the_one_before(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    checkpoints = Checkpoints(tmp_path, every_disk=1)
    for step in (1, 2):
        checkpoints.save(step, {"value": torch.full((3,), step)})
        checkpoints.wait()
    newest = CheckpointFolder(str(tmp_path)).found()[0]
    file = next((tmp_path / newest.name).glob("*.distcp"))
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    state = {"value": torch.zeros(3)}
    assert Checkpoints(tmp_path).load(state) == 1
    assert any("using the one before it" in record.getMessage() for record in caplog.records)


def test_a_folder_that_cannot_be_written_is_said_once_and_training_continues(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints = Checkpoints(tmp_path / "a", every_disk=1)
    (tmp_path / "a").write_text("a file")
    for step in (1, 2, 3):
        checkpoints.save(step, {"value": torch.ones(1)})
        checkpoints.wait()
    warnings = [record.getMessage() for record in caplog.records if record.name == "edriver.worker"]
    assert len([text for text in warnings if "training continues" in text]) == 1


def test_an_edited_script_is_named_the_key(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, every_disk=1)
    checkpoints.save(1, {"value": torch.ones(1)})
    checkpoints.wait()
    with pytest.raises(edriver.CheckpointError, match="it has no other, which the state has"):
        Checkpoints(tmp_path).load({"value": torch.ones(1), "other": 1})


def test_a_time_is_kept_by_looks_that_are_rare(tmp_path: Path) -> None:
    now = 0.0
    saver = DiskSaver(str(tmp_path), timedelta(seconds=100), 3, clock=lambda: now)
    saved, looks, judged = [], [], saver._judged
    saver._judged = lambda step: looks.append(step) or judged(step)  # type: ignore[method-assign,func-returns-value,redundant-expr]
    for step in range(1, 10_001):
        now = step / 10
        if saver.due(step):
            saved.append(step)
    intervals = [after - before for before, after in itertools.pairwise(saved)]
    assert all(1000 <= interval <= 1010 for interval in intervals), saved
    assert len(looks) < 200


def test_looks_that_find_a_checkpoint_still_being_written_skip_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = Checkpoints(tmp_path, every_disk=1)
    monkeypatch.setattr(DiskSaver, "_agreed", lambda _self, mine: [1, *mine[1:]])
    for step in (1, 2):
        checkpoints.save(step, {"value": torch.ones(1)})
    assert not CheckpointFolder(str(tmp_path)).found()
    warnings = [record.getMessage() for record in caplog.records if record.name == "edriver.worker"]
    assert len(warnings) == 1
    assert "takes longer than the interval" in warnings[0]
