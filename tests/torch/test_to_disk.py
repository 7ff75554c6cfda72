"""Checkpoints in memory, written to disk by processes that were not their ranks: read without edriver, and by it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._C._distributed_c10d import HashStore
from torch.distributed.checkpoint.state_dict_loader import load

from edriver.checkpoint_folder.folder import CheckpointFolder
from edriver.checkpoint_folder.ownership import FolderInUseError, FolderOwner, Ownership
from edriver.model.ids import RoundId
from edriver.model.memory_checkpoint import DiskTarget
from edriver.worker import context
from edriver.worker.checkpoints.memory.place import CurrentMemory
from edriver.worker.checkpoints.memory.saver import MemorySaver
from edriver.worker.checkpoints.memory.schedule import DiskSchedule
from edriver.worker.checkpoints.memory.shard import DueForDisk
from edriver.worker.checkpoints.memory.to_disk import Write, WriteError, WriteJob
from edriver.worker.checkpoints.script_disk import DiskSaver
from tests import needs
from tests.torch.fake_memory import FolderMemory, join_round, newest_whole

HOSTS = ("one", "two")


class Run:
    """Two hosts of one rank each, whose ranks save the same values, of which torch leaves each to one of them."""

    def __init__(
        self, folder: Path, every_disk: int | timedelta = 1, n: int = 1, now: float = 1000.0, location: str = ""
    ) -> None:
        self.memory_folder = folder / "memory"
        self.memory_folder.mkdir(exist_ok=True)
        self.disk = folder / "checkpoints"
        self.location = location or str(self.disk)
        self.now = now
        self.schedules = [DiskSchedule(every_disk, lambda: self.now) for _ in HOSTS]
        self.memories: list[FolderMemory] = []
        self.saved = False
        self.there_when_sealed = 0
        self.savers = []
        store = HashStore()
        for rank, host in enumerate(HOSTS):
            self.memories.append(join_round(self.memory_folder, rank, 2, n, host=host))
            place = context.current.part(CurrentMemory).place()
            assert place is not None
            target = DiskTarget(self.location, 2, "python")
            self.savers.append(MemorySaver(place, store, 1, 0.01, disk=(target, self.schedules[rank])))

    def save(self, step: int) -> None:
        for rank in (1, 0, 1) if not self.saved else (1, 0):  # rank 1 has no plan before rank 0 has made it
            self.savers[rank].save(step, lambda: values(step))
        self.saved = True

    def jobs(self, keep: int = 2) -> list[WriteJob]:
        found = newest_whole(self.memory_folder)
        assert found is not None
        plain = (self.location, keep)
        return [WriteJob("", found.checkpoint, found.layout, (rank,), *plain, "", "") for rank in range(2)]

    def write(self, keep: int = 2) -> list[dict[str, Any]]:
        """What both hosts do, the first one leading; returns what it has said."""
        leading, other = self.jobs(keep)
        said: list[dict[str, Any]] = []

        def others() -> None:
            job = WriteJob(**{name: getattr(other, name) for name in WriteJob.__slots__} | {"name": said[0]["name"]})
            Write(job, self.memories[1], lambda _: None, lambda: None).run()

        def say(what: dict[str, Any]) -> None:
            said.append(what)
            if "sealed" in what:
                self.there_when_sealed = len(CheckpointFolder(str(self.disk)).found())

        Write(leading, self.memories[0], say, others).run()
        return said


def values(step: int) -> dict[str, Any]:
    made = torch.Generator().manual_seed(step)
    return {
        "model": {
            "weight": torch.randn(5, 3, generator=made),
            "bias": torch.randn(3, generator=made).to(torch.bfloat16),
        },
        "empty": torch.empty(0),
        "scalar": torch.tensor(float(step)),
        "rng": torch.arange(step, step + 7, dtype=torch.uint8),
        "step": step,
    }


def same(found: dict[str, Any], wanted: dict[str, Any]) -> bool:
    return all(
        same(found[key], value)
        if isinstance(value, dict)
        else torch.equal(found[key], value)
        if isinstance(value, torch.Tensor)
        else found[key] == value
        for key, value in wanted.items()
    )


def test_a_checkpoint_is_read_from_disk_by_torch_alone_bit_by_bit(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.save(7)
    assert run.write() == [{"name": "checkpoint-000001"}, {"written": True}, {"sealed": True}]
    found = {
        "model": {"weight": torch.zeros(5, 3), "bias": torch.zeros(3, dtype=torch.bfloat16)},
        "empty": torch.empty(0),
        "scalar": torch.tensor(0.0),
        "rng": torch.zeros(7, dtype=torch.uint8),
        "step": 0,
    }
    load(found, checkpoint_id=run.disk / "checkpoint-000001", no_dist=True)
    assert same(found, values(7))


def test_the_folder_has_what_the_manifest_names_and_nothing_else(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.save(7)
    run.write()
    folder = CheckpointFolder(str(run.disk))
    (found,) = folder.found()
    assert found.whole
    assert found.steps == 7
    assert not folder.damage(found)
    assert found.manifest is not None
    assert found.manifest.size == 2
    assert found.manifest.entries["model.weight"].shape == (5, 3)
    assert {path.name for path in (run.disk / found.name).iterdir()} == {*found.manifest.files, "manifest.json"}


def test_checkpoints_of_a_script_load_it(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.save(7)
    run.write()
    saver = DiskSaver(str(run.disk), 1, 2)
    assert saver.newest() == ("checkpoint-000001", 7)
    state = values(3)
    state["rng"] = torch.zeros(7, dtype=torch.uint8)
    saver.load("checkpoint-000001", lambda _: state)
    assert same(state, values(7))


def test_the_last_ones_stay(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for step in (1, 2, 3):
        run.save(step)
        run.write()
    assert sorted(found.steps for found in CheckpointFolder(str(run.disk)).found()) == [2, 3]
    assert run.there_when_sealed == 2, "the process may be ended once it has said so"


def test_without_all_parts_there_is_no_checkpoint_and_what_was_begun_can_be_removed(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.save(7)
    leading = Write(run.jobs()[0], run.memories[0], lambda _: None, lambda: None)
    with pytest.raises(WriteError, match="edriver-part-1 is not there"):
        leading.run()
    folder = CheckpointFolder(str(run.disk))
    assert folder.newest() is None
    leading.give_up()
    assert not folder.found()


def test_a_folder_that_this_host_does_not_share_is_said(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.save(7)
    job = run.jobs()[1]
    job = WriteJob(**{name: getattr(job, name) for name in WriteJob.__slots__} | {"name": "checkpoint-000005"})
    with pytest.raises(
        WriteError, match=r"checkpoint-000005.* is not there on this host: all hosts must share the folder"
    ):
        Write(job, run.memories[1], lambda _: None, lambda: None).run()


def test_nothing_is_written_into_a_folder_that_another_run_owns(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.save(7)
    other = FolderOwner.this_process({"EDRIVER_RUN_ID": "other", "EDRIVER_AGENT_PID": str(os.getpid())})
    ownership = Ownership(CheckpointFolder(str(run.disk)), other)
    ownership.claim(RoundId(1, 1))
    try:
        with pytest.raises(FolderInUseError, match="run other"):
            run.write()
    finally:
        ownership.release()
    assert not CheckpointFolder(str(run.disk)).found()


def test_rank_0_alone_says_which_checkpoints_go_to_disk(tmp_path: Path) -> None:
    run = Run(tmp_path, timedelta(seconds=60))
    due = {}
    for step in range(1, 7):
        run.now += 25
        run.save(step)
        target = run.memories[0].targets[step]
        assert target is not None
        assert run.memories[1].targets[step] is None
        due[step] = target.due
    assert due == {1: False, 2: False, 3: True, 4: False, 5: False, 6: True}


def test_the_interval_goes_on_in_the_next_round(tmp_path: Path) -> None:
    """Else a run whose rounds are shorter than the interval would never write."""
    run = Run(tmp_path, timedelta(seconds=60))
    run.now += 50
    run.save(1)
    again = Run(tmp_path, timedelta(seconds=60), n=2, now=1055.0)
    for saver in again.savers:
        saver.load(lambda _: values(1))
    assert again.schedules[0].last == DueForDisk(0, 1000.0)
    again.save(2)
    again.now = 1061.0
    again.save(3)
    assert [again.memories[0].targets[step].due for step in (2, 3)] == [False, True]  # type: ignore[union-attr]


def test_a_job_is_a_line_of_json() -> None:
    sent = {
        "socket": "/s", "round_id": [1, 2], "step": 3, "size": 4, "layout": "0a", "ranks": [2], "location": "/c",
        "keep": 3, "name": "", "unfinished": "checkpoint-000001",
    }  # fmt: skip
    job = WriteJob.of(json.dumps(sent))
    assert (job.checkpoint.round_id, job.layout, job.ranks) == (RoundId(1, 2), b"\n", (2,))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k,mode=700", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.needs(needs.ROOT_USER)
def test_a_disk_that_fills_up_is_named_and_the_older_checkpoint_stays(tmp_path: Path, small_disk: Path) -> None:
    run = Run(tmp_path)
    run.save(7)
    run.write()
    filler = small_disk / "filler"
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    with filler.open("r+b") as file:
        file.truncate(filler.stat().st_size - 3 * 4096)  # room to begin
    run.save(8)
    leading = Write(run.jobs()[0], run.memories[0], lambda _: None, lambda: None)
    with pytest.raises(Exception, match="No space left on device"):
        leading.run()
    leading.give_up()
    folder = CheckpointFolder(str(run.disk))
    assert [(found.steps, found.whole) for found in folder.found()] == [(7, True)]
    assert not folder.damage(folder.found()[0])
    filler.unlink()
    assert run.write()[-1] == {"sealed": True}
    assert sorted(found.steps for found in folder.found()) == [7, 8]


def test_a_url_is_written_to_as_a_folder_is(tmp_path: Path) -> None:
    run = Run(tmp_path, location=f"local://{tmp_path / 'checkpoints'}")
    run.save(7)
    run.write()
    saver = DiskSaver(f"local://{run.disk}", 1, 2)
    assert saver.newest() == ("checkpoint-000001", 7)
    state = values(3)
    state["rng"] = torch.zeros(7, dtype=torch.uint8)
    saver.load("checkpoint-000001", lambda _: state)
    assert same(state, values(7))
