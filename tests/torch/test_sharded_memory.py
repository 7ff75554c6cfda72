"""Checkpoints of a ShardedState in memory: parts of the live state, agreed on in the seal, loaded by any size."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
import torch.distributed as dist

from edriver.checkpoint_folder.folder import CheckpointFolder
from edriver.model.ids import RoundId
from edriver.model.memory_checkpoint import Refusal
from edriver.model.plan import SINGLE_WORKER
from edriver.model.shards import NO_SHARDING
from edriver.worker import context
from edriver.worker.checkpoints.memory.mapped import Mappings
from edriver.worker.checkpoints.memory.place import CurrentMemory
from edriver.worker.state.sharded_state import ShardedState
from edriver.worker.state.wishes import Wishes
from tests.torch.fake_memory import FolderMemory, newest_whole
from tests.torch.ranks import run_ranks
from tests.torch.sharded_checkpoints import (
    MORE,
    STEPS,
    Rounds,
    digest,
    refused,
    sharded,
    train,
    wait,
)

NEVER = 1000
HOSTS = 2


def enter(folder: Path, rank: int, size: int, replica: int, loads: bool = False, number: int = 1) -> FolderMemory:
    """Be a member of a round, on one of two hosts; with a replica size of 0, all members are one replica."""
    source = newest_whole(folder) if loads else None
    place = dataclasses.replace(
        SINGLE_WORKER,
        round_id=RoundId(1, number),
        rank=rank,
        size=size,
        sources=tuple(range(replica)) or (0,),
        receivers=tuple(range(replica or 1, size)),
        replica_size=replica or size,
        first_sync=True,
        checkpoint=0 if source is None else source.checkpoint.step,
        memory_checkpoint=source,
        sharding=None if replica else NO_SHARDING,
    )
    context.current.place.enter(place)
    memory = FolderMemory(folder, f"host{rank * HOSTS // size}")
    context.current.part(CurrentMemory)._server = memory, Mappings()
    return memory


def new_state(folder: Path, seed: int = 3, every: int = NEVER, every_memory: int = STEPS) -> ShardedState:
    return sharded(folder / "disk", seed, every, every_memory=every_memory)


def train_on(state: ShardedState, steps: int) -> None:
    for _ in range(steps):
        train(state, 1)
        state._parts._parts.wait()  # type: ignore[union-attr]  # else a part may still be written at the next seal
        dist.barrier()


def write(folder: Path, size: int, replica: int, rank: int) -> list[str]:
    """Train up to a checkpoint; returns digests of it and of some steps later."""
    memory = enter(folder, rank, size, replica)
    state = new_state(folder)
    rounds = Rounds()
    state.bind(rounds)
    state.sync()
    train_on(state, STEPS)
    assert rounds.commits == [False] * STEPS, "no commit is needed"
    assert set(memory.targets) == ({STEPS} if rank in writers(size, replica) else set())
    if rank == 0:
        target = memory.targets[STEPS]
        assert target is not None
        assert (target.location, target.due) == (str(folder / "disk"), False)
    found = [digest(state)]
    train_on(state, MORE)
    return [*found, digest(state)]


def writers(size: int, replica: int) -> Sequence[int]:
    """Of each position one, on different hosts."""
    return range(size) if replica == 0 else [0, 3] if (size, replica) == (4, 2) else range(replica)


def go_on(folder: Path, size: int, replica: int, rank: int) -> list[str]:
    """Load the newest checkpoint, into another model; returns digests of it and of some steps later."""
    enter(folder, rank, size, replica, loads=True, number=2)
    state = new_state(folder, seed=rank + 10)
    state.sync()
    found = [digest(state)]
    train_on(state, MORE)
    return [*found, digest(state)]


@pytest.fixture(scope="module", params=[(4, 2), (4, 0)], ids=["two-replicas", "one-replica"])
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A checkpoint of four workers, and what its training went through."""
    folder = tmp_path_factory.mktemp("written")
    digests = run_ranks(partial(write, folder, *request.param), 4)
    assert digests == [digests[0]] * 4
    return folder, digests[0]


@pytest.mark.parametrize(("size", "replica"), [(4, 2), (2, 0), (3, 0), (2, 1)], ids=str)
def test_any_number_of_workers_loads_it_without_the_disk(
    written: tuple[Path, list[str]], size: int, replica: int
) -> None:
    folder, digests = written
    found = run_ranks(partial(go_on, folder, size, replica), size)
    assert [each[0] for each in found] == [digests[0]] * size
    if size in (2, 4):  # the mean of equal gradients is exact
        assert found == [digests] * size
    assert CheckpointFolder(str(folder / "disk")).found() == []


def lose_a_part(folder: Path, rank: int) -> bool:
    """A writer dies in its second save, after which nothing that is newer is there."""
    memory = enter(folder, rank, 3, 0)
    state = new_state(folder, every_memory=1)
    state.sync()
    train_on(state, 1)
    memory.cut = rank == 2
    train_on(state, 1)
    source = newest_whole(folder)
    return source is not None and source.checkpoint.step == 1


def test_a_part_that_is_cut_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    assert run_ranks(partial(lose_a_part, tmp_path), 3) == [True] * 3


def have_no_room(folder: Path, rank: int) -> list[int]:
    """The memory of one host is too small: checkpoints go to disk, at the interval of those."""
    memory = enter(folder, rank, 2, 2)
    state = new_state(folder, every=2, every_memory=1)
    state.sync()
    memory.refusal = Refusal.TOO_LARGE if rank else None
    train_on(state, 5)
    return [found.steps for found in CheckpointFolder(str(folder / "disk")).found()]


def test_where_a_host_has_no_room_workers_write_to_disk(tmp_path: Path) -> None:
    assert run_ranks(partial(have_no_room, tmp_path), 2) == [[4, 2]] * 2
    assert newest_whole(tmp_path) is None


def be_busy(folder: Path, rank: int) -> list[int]:
    """A request while another worker still writes its part is met when that is done; returns which steps it saved."""
    memory = enter(folder, rank, 2, 2)
    state = new_state(folder, every_memory=NEVER)
    state.sync()
    under_way = threading.Event()
    if rank == 1:
        state._parts._parts._device.then(under_way.wait)  # type: ignore[union-attr]
    else:
        context.current.save_requests.request(RoundId(1, 1), 1)
    train(state, 1)
    saved = sorted(memory.targets)
    under_way.set()
    train_on(state, 2)
    target = memory.targets.get(2 + len(saved))
    assert rank or (target is not None and target.due)
    return [len(saved), len(memory.targets)]


def test_a_request_waits_until_no_part_is_being_written(tmp_path: Path) -> None:
    assert run_ranks(partial(be_busy, tmp_path), 2) == [[0, 1]] * 2


def load_another(folder: Path, rank: int) -> str:
    enter(folder, rank, 2, 2, loads=True)
    return refused(folder / "disk")


def test_one_of_another_model_is_refused_by_name(written: tuple[Path, list[str]]) -> None:
    folder, _ = written
    for said in run_ranks(partial(load_another, folder), 2):
        assert "the model's 0.weight has shape (8, 4) here and (7, 4) there" in said


def write_to_disk(folder: Path, size: int, replica: int, rank: int) -> str:
    memory = enter(folder, rank, size, replica)
    memory.refusal = Refusal.TOO_LARGE
    state = new_state(folder, every=STEPS, every_memory=1)
    state.sync()
    train(state, STEPS)
    wait(state)
    return digest(state)


def write_later_one(folder: Path, size: int, replica: int, rank: int) -> None:
    enter(folder, rank, size, replica, number=2)
    state = new_state(folder, every_memory=STEPS + 1)
    state.sync()
    train_on(state, STEPS + 1)


def go_on_from_disk(folder: Path, size: int, replica: int, rank: int) -> str:
    memory = enter(folder, rank, size, replica, loads=True, number=3)
    memory.killed = rank == 1
    state = new_state(folder, seed=rank + 10)
    state.sync()
    return digest(state)


@pytest.mark.parametrize(("size", "replica"), [(4, 2), (3, 0)], ids=["two-replicas", "one-replica"])
def test_where_one_worker_cannot_read_its_part_all_load_what_is_on_disk(
    tmp_path: Path, size: int, replica: int
) -> None:
    on_disk = run_ranks(partial(write_to_disk, tmp_path, size, replica), size)
    run_ranks(partial(write_later_one, tmp_path, size, replica), size)
    found = newest_whole(tmp_path)
    assert found is not None
    assert found.checkpoint.step == STEPS + 1
    assert run_ranks(partial(go_on_from_disk, tmp_path, size, replica), size) == on_disk


@pytest.mark.parametrize("members", [2, 3, 1000])
def test_a_sum_says_what_any_member_wishes_for(members: int) -> None:
    every = [Wishes(commit=at % 2 == 0, busy=True, no_memory=at == 1) for at in range(members)]
    every[0] = every[0]._replace(checkpoint=True, for_disk=True)
    assert Wishes.of_sum(sum(wish.in_sum(members) for wish in every), members) == Wishes(True, True, True, True, True)
    assert Wishes.of_sum(sum(Wishes(busy=True).in_sum(members) for _ in every), members) == Wishes(busy=True)
    assert Wishes.of_bits(Wishes(for_disk=True).in_bits() | Wishes(busy=True).in_bits()) == Wishes(
        for_disk=True, busy=True
    )
