"""Two ranks that save into memory at steps that rank 0's clock decides."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
import torch
from torch._C._distributed_c10d import HashStore
from torch.distributed import DistNetworkError

from edriver.worker import context
from edriver.worker.checkpoints.memory.place import CurrentMemory, MemoryPlace
from edriver.worker.checkpoints.memory.saver import MemorySaver
from tests.torch.fake_memory import join_round, newest_whole


def _place(folder: Path, rank: int) -> MemoryPlace:
    join_round(folder, rank, 2)
    place = context.current.part(CurrentMemory).place()
    assert place is not None
    return place


def test_all_ranks_save_the_same_steps_at_the_interval_of_rank_0s_clock(tmp_path: Path) -> None:
    now, store = 0.0, HashStore()
    ranks = [
        MemorySaver(_place(tmp_path, rank), store, timedelta(seconds=1), 0.01, clock=lambda: now) for rank in range(2)
    ]
    saved: list[list[int]] = [[], []]
    for step in range(1, 101):
        now += 0.1
        for rank in (1, 0):
            if ranks[rank].due(step):
                ranks[rank].save(step, lambda: {"value": torch.ones(3)})
                saved[rank].append(step)
    assert saved[0] == saved[1]
    assert [after - before for before, after in zip(saved[0][-5:-1], saved[0][-4:], strict=True)] == [10] * 4
    whole = newest_whole(tmp_path)
    assert whole is not None
    assert whole.checkpoint.step == saved[0][-1]


def test_a_store_that_is_lost_costs_the_checkpoint_and_not_the_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Lost:
        def add(self, key: str, value: int) -> int:
            raise DistNetworkError(f"{key}: the connection is lost")

    saver = MemorySaver(_place(tmp_path, 1), Lost(), 1)
    for step in (1, 2):
        assert saver.due(step)
        assert not saver.save(step, lambda: {"value": torch.ones(3)})
    (record,) = (record for record in caplog.records if record.name == "edriver.worker")
    assert "the connection is lost; training continues" in record.getMessage()


def test_what_the_script_raises_as_its_state_is_made_is_raised(tmp_path: Path) -> None:
    saver = MemorySaver(_place(tmp_path, 1), HashStore(), 1)

    def state() -> dict[str, object]:
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        saver.save(1, state)
