"""MemoryWriter and MemoryReader under torch.distributed.checkpoint, with a fake of the servers."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed._shard import sharded_tensor
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save, save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from edriver.model.memory_checkpoint import Refusal
from edriver.worker import context
from edriver.worker.checkpoints.memory.server_link import ShardName
from edriver.worker.checkpoints.memory.storage import MemoryReader, MemoryWriter, parse_step
from edriver.worker.errors import CheckpointError
from tests.torch.fake_memory import digest, join_round, newest_whole, stored_bytes
from tests.torch.ranks import run_ranks

ROWS = 13


def _state(size: int, seed: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    whole = torch.randn(ROWS, 7, generator=generator)
    mesh = init_device_mesh("cpu", (size,))
    return {
        "rows": distribute_tensor(whole, mesh, [Shard(0)]),
        "columns": distribute_tensor(whole.clone(), mesh, [Shard(1)]),
        "replicated": torch.randn(50, 50, generator=generator),
        "turned": torch.randn(5, 3, generator=generator).t(),
        "scalar": torch.tensor(2.5 * seed),
        "empty": torch.empty(0, 3),
        "half": torch.full((3,), seed, dtype=torch.bfloat16),
        "flags": torch.tensor([True, False]),
        "nested": {"step": seed, "name": "a" * seed, "list": [1, 2, seed]},
    }


def _flat(state: dict[str, Any]) -> dict[str, Any]:
    return {**{key: value for key, value in state.items() if key != "nested"}, **state["nested"]}


def _saved(folder: Path, rank: int, *, size: int, host_of: tuple[str, ...], with_async: bool = False) -> str:
    join_round(folder, rank, size, host=host_of[rank])
    state = _state(size, 3)
    if with_async:
        saving: Any = async_save(state, checkpoint_id="runs/step-30", storage_writer=MemoryWriter())
        saving.result()
    else:
        save(state, checkpoint_id="30", storage_writer=MemoryWriter())
    dist.barrier()
    return digest(_flat(state))


def _loaded(folder: Path, rank: int, *, size: int, host_of: tuple[str, ...]) -> tuple[str, int]:
    memory = join_round(folder, rank, size, 2, host=host_of[rank])
    state = _state(size, 5)
    reader = MemoryReader()
    assert reader.step == 30
    load(state, storage_reader=reader)
    return digest(_flat(state)), memory.fetched


@pytest.mark.parametrize("with_async", [False, True])
def test_what_four_ranks_save_three_load_from_two_hosts(tmp_path: Path, with_async: bool) -> None:
    hosts = ("one", "one", "two", "two")
    saved = run_ranks(functools.partial(_saved, tmp_path, size=4, host_of=hosts, with_async=with_async), 4)
    loaded = run_ranks(functools.partial(_loaded, tmp_path, size=3, host_of=("one", "two", "one")), 3)
    assert {digest for digest, _ in loaded} == set(saved)
    assert len(set(saved)) == 1
    assert all(fetched > 0 for _, fetched in loaded)


def test_a_shard_of_this_host_is_mapped_and_not_fetched(tmp_path: Path) -> None:
    saved = run_ranks(functools.partial(_saved, tmp_path, size=2, host_of=("one", "one")), 2)
    loaded = run_ranks(functools.partial(_loaded, tmp_path, size=2, host_of=("one", "one")), 2)
    assert loaded == [(saved[0], 0)] * 2


def _sharded_tensor(size: int, seed: int) -> tuple[dict[str, Any], torch.Tensor]:
    """A state as FSDP1's sharded state dicts have it, and what this rank's shard is to hold."""
    parts = torch.randn(ROWS, 7, generator=torch.Generator().manual_seed(seed)).tensor_split(size)
    rank, local = dist.get_rank(), parts[dist.get_rank()].clone()
    place = ShardMetadata([sum(map(len, parts[:rank])), 0], [*local.shape], f"rank:{rank}/cpu")
    shard: Any = sharded_tensor.shard.Shard(local, place)
    made: Any = sharded_tensor.init_from_local_shards([shard], ROWS, 7)
    return {"rows": made}, local


def _saved_as_fsdp1(folder: Path, rank: int) -> None:
    join_round(folder, rank, 3, host=("one", "one", "two")[rank])
    save(_sharded_tensor(3, 3)[0], checkpoint_id="30", storage_writer=MemoryWriter())
    dist.barrier()


def _loaded_as_fsdp1(folder: Path, rank: int) -> bool:
    join_round(folder, rank, 2, 2, host=("one", "two")[rank])
    _, wanted = _sharded_tensor(2, 3)
    state, _ = _sharded_tensor(2, 5)
    load(state, storage_reader=MemoryReader())
    return torch.equal(state["rows"].local_shards()[0].tensor, wanted)


def test_the_sharded_state_of_fsdp1_is_loaded_by_another_number_of_ranks(tmp_path: Path) -> None:
    run_ranks(functools.partial(_saved_as_fsdp1, tmp_path), 3)
    assert run_ranks(functools.partial(_loaded_as_fsdp1, tmp_path), 2) == [True, True]


def _saved_by_some(folder: Path, rank: int) -> str:
    memory = join_round(folder, rank, 2)
    memory.cut = rank == 1
    save(_state(2, 3), checkpoint_id="30", storage_writer=MemoryWriter())
    return "goes on"


def test_a_checkpoint_that_one_rank_could_not_commit_is_not_whole(tmp_path: Path) -> None:
    assert run_ranks(functools.partial(_saved_by_some, tmp_path), 2) == ["goes on"] * 2
    assert newest_whole(tmp_path) is None
    assert stored_bytes(tmp_path) == 0, "rank 0 has not committed its shard for nothing"


@pytest.mark.usefixtures("group")
def test_a_process_alone_saves_and_loads(tmp_path: Path) -> None:
    join_round(tmp_path, 0, 1)
    state = _state(1, 3)
    save(state, checkpoint_id="30", storage_writer=MemoryWriter())
    join_round(tmp_path, 0, 1, 2)
    other = _state(1, 4)
    load(other, storage_reader=MemoryReader(), checkpoint_id="30")
    assert digest(_flat(other)) == digest(_flat(state))
    with pytest.raises(CheckpointError, match="step 40 cannot be loaded: the one in memory has step 30"):
        load(other, storage_reader=MemoryReader(), checkpoint_id="40")


@pytest.mark.usefixtures("group")
def test_a_cut_save_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bytes are there, but for the end; whoever reads it all the same finds no header."""
    memory = join_round(tmp_path, 0, 1)
    for step in (20, 30):
        save(_state(1, 3), checkpoint_id=str(step), storage_writer=MemoryWriter())
    monkeypatch.setattr(MemoryWriter, "finish", lambda *_args, **_kwargs: None)
    save(_state(1, 4), checkpoint_id="40", storage_writer=MemoryWriter())
    whole = newest_whole(tmp_path)
    assert whole is not None
    assert whole.checkpoint.step == 30
    memory.commit(ShardName(whole.checkpoint._replace(step=40), 0, whole.layout), 100)
    join_round(tmp_path, 0, 1, 2)
    with pytest.raises(BaseException, match="has not been written to its end"):
        load(_state(1, 5), storage_reader=MemoryReader())


@pytest.mark.usefixtures("group")
def test_no_memory_is_said_once_with_what_is_needed_and_training_continues(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    memory = join_round(tmp_path, 0, 1)
    memory.refusal = Refusal.TOO_LARGE
    for step in (30, 40):
        save(_state(1, 3), checkpoint_id=str(step), storage_writer=MemoryWriter())
    (text,) = _warnings(caplog)
    assert "step 30 is not kept in memory" in text
    assert "may use 1.0 KiB of this host's memory (--checkpoint-memory)" in text
    assert stored_bytes(tmp_path) == 0
    memory.refusal = None
    save(_state(1, 3), checkpoint_id="50", storage_writer=MemoryWriter())
    memory.refusal = Refusal.TOO_LARGE
    save(_state(1, 3), checkpoint_id="60", storage_writer=MemoryWriter())
    assert len(_warnings(caplog)) == 2, "it is news again"


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "edriver.worker"]


@pytest.mark.usefixtures("group")
def test_each_tensor_is_copied_once(tmp_path: Path) -> None:
    """Nothing of a tensor's size is allocated in a save into memory that is mapped already."""
    join_round(tmp_path, 0, 1)
    state = {"large": torch.randn(1 << 20), "turned": torch.randn(1 << 10, 1 << 10).t()}
    for step in (1, 2):
        save(state, checkpoint_id=str(step), storage_writer=MemoryWriter())
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        save(state, checkpoint_id="3", storage_writer=MemoryWriter())
    assert sum(max(0, event.self_cpu_memory_usage) for event in profile.key_averages()) < 1 << 20


def test_outside_of_edriver_the_way_to_disk_is_named() -> None:
    context.current = context.WorkerContext()
    for made in (MemoryWriter, MemoryReader):
        with pytest.raises(CheckpointError, match=r"use\s+edriver\.checkpoints\.Checkpoints"):
            made()


@pytest.mark.parametrize(("name", "step"), [(7, 7), ("7", 7), ("runs/step-70/", 70), (Path("a/b12"), 12)])
def test_a_step_is_the_number_at_the_end(name: Any, step: int) -> None:
    assert parse_step(name) == step


@pytest.mark.parametrize("name", [-1, "latest", ""])
def test_an_id_without_a_step_is_refused(name: Any) -> None:
    with pytest.raises(ValueError, match="is the step"):
        parse_step(name)
