"""Checkpoints of a ShardedState on disk: written in parts, one by a worker of each position, and loaded by any size."""

from __future__ import annotations

import itertools
import math
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.distributed.checkpoint.state_dict_loader import load

from edriver.checkpoint_folder.folder import CheckpointFolder
from edriver.model.ids import RoundId
from edriver.worker import context
from edriver.worker.checkpoints import state_checkpoints
from edriver.worker.state.sharded_state import ShardedState
from edriver.worker.state.torch_state import TorchState
from tests.torch.mesh_rounds import make_step
from tests.torch.ranks import run_ranks
from tests.torch.sharded_checkpoints import (
    MORE,
    STEPS,
    Rounds,
    digest,
    enter,
    newest,
    refused,
    sharded,
    train,
    wait,
    whole,
)


def write(folder: Path, size: int, replica: int, rank: int) -> list[str]:
    """Train up to a checkpoint; returns digests of it and of some steps later."""
    enter(rank, size, replica)
    state = sharded(folder)
    rounds = Rounds()
    state.bind(rounds)
    parts = parts_begun(state)
    state.sync()
    train(state, STEPS)
    assert rounds.commits == [False, False, True], "also of those that write no part"
    if (size, replica) == (4, 2):
        assert parts == {0: [0], 3: [1]}.get(rank, []), "of each position, spread over the replicas"
    found = [digest(state)]
    train(state, MORE)
    return [*found, digest(state)]


def parts_begun(state: ShardedState) -> list[int]:
    """The parts that this rank writes from now on."""
    found: list[int] = []
    checkpoints: Any = state._disk.checkpoints  # type: ignore[union-attr]
    real = checkpoints.write

    def write(place: state_checkpoints.TrainingPosition, *others: Any) -> None:
        found.append(place.part)
        real(place, *others)

    checkpoints.write = write
    return found


def go_on(folder: Path, size: int, replica: int, rank: int) -> list[str]:
    """Load the newest checkpoint, into another model; returns digests of it and of some steps later."""
    enter(rank, size, replica, STEPS)
    state = sharded(folder, seed=rank + 10)
    assert state.newest_checkpoint(look=True) == STEPS
    dist.barrier()  # as in a run, where the round is formed once all have looked: from then on the folder has an owner
    state.sync()
    found = [digest(state)]
    train(state, MORE)
    return [*found, digest(state)]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A checkpoint of two replicas of two, and what its training went through."""
    folder = tmp_path_factory.mktemp("written")
    digests = run_ranks(partial(write, folder, 4, 2), 4)
    assert digests == [digests[0]] * 4
    return folder, digests[0]


@pytest.mark.parametrize(("size", "replica"), [(2, 2), (2, 1), (4, 4), (3, 3)])
def test_another_number_of_replicas_of_another_size_loads_it(
    written: tuple[Path, list[str]], size: int, replica: int
) -> None:
    folder, digests = written
    found = run_ranks(partial(go_on, folder, size, replica), size)
    assert [each[0] for each in found] == [digests[0]] * size
    if size in (2, 4):  # the mean of equal gradients is exact
        assert found == [digests] * size


def test_its_parts_are_written_by_both_replicas_and_nothing_else_is_left(written: tuple[Path, list[str]]) -> None:
    folder, _ = written
    found = newest(folder)
    assert found.whole
    assert set(found.manifest.files) == {".metadata", "__0_0.distcp", "__1_0.distcp"}
    assert {path.name for path in (folder / found.name).iterdir()} == {*found.manifest.files, "manifest.json"}
    assert not CheckpointFolder(str(folder)).damage(found)
    assert found.manifest.steps == STEPS
    assert found.manifest.size == 4
    assert found.manifest.entries["model.0.weight"].shape == (7, 4)
    assert found.manifest.entries["optimizer.state.2.bias.exp_avg"].shape == (5,)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_torch_alone_reads_it(written: tuple[Path, list[str]]) -> None:
    folder, _ = written
    model = torch.nn.Linear(4, 7)
    load({"model": {"0.weight": model.weight}}, checkpoint_id=folder / newest(folder).name, no_dist=True)
    (found,) = run_ranks(partial(first_weight, folder), 1)
    assert model.weight.tolist() == found


def first_weight(folder: Path, rank: int) -> list[list[float]]:
    enter(rank, 1, 1, STEPS)
    state = sharded(folder)
    state.sync()
    weight: list[list[float]] = state.model.get_submodule("0").weight.full_tensor().tolist()  # type: ignore[operator, union-attr]
    return weight


def test_a_state_that_is_not_sharded_loads_it(written: tuple[Path, list[str]]) -> None:
    folder, digests = written
    assert run_ranks(partial(go_on_whole, folder), 1) == [digests]


def go_on_whole(folder: Path, rank: int) -> list[str]:
    enter(rank, 1, 1, STEPS)
    state = whole(folder, seed=8)
    state.sync()
    found = [digest(state)]
    train(state, MORE)
    return [*found, digest(state)]


def write_whole(folder: Path, rank: int) -> list[str]:
    enter(rank, 1, 1)
    state = whole(folder)
    state.sync()
    train(state, STEPS)
    found = [digest(state)]
    train(state, MORE)
    return [*found, digest(state)]


def test_what_a_state_that_is_not_sharded_has_written_is_loaded(tmp_path: Path) -> None:
    digests = run_ranks(partial(write_whole, tmp_path), 1)
    assert run_ranks(partial(go_on, tmp_path, 4, 2), 4) == digests * 4


# ---- what is not whole


def lose_a_part(folder: Path, rank: int) -> str:
    """The second part of the second checkpoint is never written; what is offered then."""
    enter(rank, 2, 2)
    state = sharded(folder, every=1)
    state._disk.checkpoints._patience = 0.5  # type: ignore[union-attr]
    state.sync()
    train(state, 1)
    if rank == 1:
        state._disk.checkpoints.write = lambda *_: None  # type: ignore[union-attr]
    train(state, 1)
    return f"{newest(folder).steps} {len(CheckpointFolder(str(folder)).found())}"


def test_one_of_which_a_part_is_missing_is_never_offered(tmp_path: Path) -> None:
    assert run_ranks(partial(lose_a_part, tmp_path), 2) == ["1 1"] * 2


def lose_a_writer(folder: Path, lost: int, rank: int) -> str:
    """A writer of the second checkpoint is lost before it has begun, as the driver says; what is offered then."""
    enter(rank, 2, 2)
    state = sharded(folder, every=1)
    state._disk.checkpoints._patience = math.inf  # type: ignore[union-attr]
    state.sync()
    train(state, 1)
    if rank == lost:
        state._disk.checkpoints.write = lambda *_: None  # type: ignore[union-attr]
    else:
        context.current.lost_members.add(RoundId(1, 1), lost)
    train(state, 1)
    return f"{newest(folder).steps} {len(CheckpointFolder(str(folder)).found())}"


@pytest.mark.parametrize("lost", [0, 1])
def test_one_whose_writer_is_lost_is_given_up_without_a_wait(tmp_path: Path, lost: int) -> None:
    assert run_ranks(partial(lose_a_writer, tmp_path, lost), 2) == ["1 1"] * 2


def write_last(folder: Path, rank: int) -> int:
    """The driver is gone for good. Rank 0's host finds that out first: its script has ended when rank 1 writes."""
    enter(rank, 2, 2)
    state, store = sharded(folder, every=100), c10d._get_default_store()
    state.sync()
    train(state, 2)
    if rank == 0:
        looks = itertools.count()
        state._disk.checkpoints._lost = lambda *_: next(looks) == 4 and store.set("looked in vain", "")  # type: ignore[func-returns-value, union-attr]
    else:
        store.wait(["looked in vain"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("edriver.worker.checkpoints.state_checkpoints.LAST_PATIENCE", 0.0)
        patch.setattr("threading.main_thread", threading.Thread)  # one that does not run
        state.write_last_checkpoint(rank == 0)
        wait(state)
    return int(newest(folder).steps)


def test_the_last_one_of_a_run_waits_for_a_host_that_is_late(tmp_path: Path) -> None:
    assert run_ranks(partial(write_last, tmp_path), 2) == [2, 2]


def lose_one_that_has_written(folder: Path, rank: int) -> int:
    enter(rank, 2, 2)
    state = sharded(folder, every=1)
    state.sync()
    if rank == 0:
        context.current.lost_members.add(RoundId(1, 1), 0)
    train(state, 1)
    return int(newest(folder).steps)


def test_one_whose_writer_is_lost_after_its_part_is_completed(tmp_path: Path) -> None:
    assert run_ranks(partial(lose_one_that_has_written, tmp_path), 2) == [1, 1]


def fail_to_write(folder: Path, rank: int) -> float:
    enter(rank, 2, 2)
    state = sharded(folder, every=1)
    state.sync()
    if rank == 1:
        state._disk.checkpoints._part = raising  # type: ignore[union-attr]
    began = time.monotonic()
    train(state, 1)
    return time.monotonic() - began


def raising(*_: object) -> Any:
    raise OSError("the disk is full")


def test_one_of_which_a_part_cannot_be_written_is_given_up_at_once(tmp_path: Path) -> None:
    assert max(run_ranks(partial(fail_to_write, tmp_path), 2)) < state_checkpoints.PATIENCE
    assert CheckpointFolder(str(tmp_path)).found() == []


def keep_few(folder: Path, rank: int) -> None:
    enter(rank, 2, 2)
    state = sharded(folder, every=1 if rank == 0 else 1000, keep=2)
    state.sync()
    train(state, 4)


def test_rank_0_decides_when_and_old_ones_are_removed(tmp_path: Path) -> None:
    run_ranks(partial(keep_few, tmp_path), 2)
    assert [found.steps for found in CheckpointFolder(str(tmp_path)).found()] == [4, 3]


def ask(folder: Path, rank: int) -> list[int]:
    """Have one written by request, while the other worker is busy and when it is not; returns which there are then."""
    enter(rank, 2, 2)
    state = sharded(folder, every=1000)
    state.sync()
    idle: threading.Event = state._disk.checkpoints._idle  # type: ignore[union-attr]
    found = []
    for step, is_free in ((1, False), (2, True)):
        if rank == 0:
            context.current.save_requests.request(RoundId(1, 1), step)
        elif not is_free:
            idle.clear()
        train_without_waiting(state)
        if not is_free:
            assert state._disk.checkpoints.busy is (rank == 1)  # type: ignore[union-attr]
            idle.set()
        wait(state)
        assert state.step == step
        found.append(len(CheckpointFolder(str(folder)).found()))
    return [*found, newest(folder).steps]


def train_without_waiting(state: TorchState) -> None:
    make_step(state.model, state.optimizer, state.step, clips=False)
    state.step += 1
    state.check_host_updates()


def test_one_is_written_on_request_unless_a_worker_still_writes_the_one_before(tmp_path: Path) -> None:
    assert run_ranks(partial(ask, tmp_path), 2) == [[0, 1, 2]] * 2


def load_another(folder: Path, rank: int) -> str:
    enter(rank, 2, 2, STEPS)
    return refused(folder)


def test_one_of_another_model_is_refused_by_name(written: tuple[Path, list[str]]) -> None:
    folder, _ = written
    for said in run_ranks(partial(load_another, folder), 2):
        assert "the model's 0.weight has shape (8, 4) here and (7, 4) there" in said
        assert "give checkpoint= another folder" in said


def find_damage(folder: Path, rank: int) -> list[str]:
    enter(rank, 2, 2, STEPS)
    state = sharded(folder, seed=rank + 10)
    state.sync()
    return [digest(state)]


def test_where_the_newest_is_damaged_all_positions_take_the_one_before(tmp_path: Path) -> None:
    digests = run_ranks(partial(write_twice, tmp_path), 2)
    found = newest(tmp_path)
    assert found.steps == 2 * STEPS
    path = tmp_path / found.name / "__1_0.distcp"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert run_ranks(partial(find_damage, tmp_path), 2) == digests


def write_twice(folder: Path, rank: int) -> list[str]:
    enter(rank, 2, 2)
    state = sharded(folder)
    state.sync()
    train(state, STEPS)
    found = [digest(state)]
    train(state, STEPS)
    return found
