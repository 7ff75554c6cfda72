"""The memory that a newcomer writes to before it joins: for what a sync brings, and for what the optimizer keeps."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import mmap
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist

from edriver.model.ids import RoundId
from edriver.model.plan import SINGLE_WORKER
from edriver.worker import context
from edriver.worker.backend.heap import HEAP_BYTES
from edriver.worker.state.sharded_state import ShardedState
from edriver.worker.state.torch_state import TorchState
from edriver.worker.sync import receiving
from edriver.worker.sync.receiving import ReceivingMemory
from tests.torch.bound_state import Rounds
from tests.torch.fingerprint import fingerprint
from tests.torch.mesh_rounds import SHARDS, loss_of, new_model, rounds_of
from tests.torch.ranks import run_ranks
from tests.torch.shard_digest import shard_digest
from tests.torch.synced_states import Net, new_state

PAGES = 256
LENGTH = PAGES * mmap.PAGESIZE
WORKERS = 4
SLACK = 4096
"""Bytes of a stream that are no elements of tensors, at most: that many follow from nothing but the tensors' number."""


def pages_there(memory: torch.Tensor) -> list[bool]:
    """Which pages of a mapping have been written to (mincore(2))."""
    found = (ctypes.c_ubyte * -(-len(memory) // mmap.PAGESIZE))()
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mincore(ctypes.c_void_p(memory.data_ptr()), ctypes.c_size_t(len(memory)), found) == 0
    return [bool(page & 1) for page in found]


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> ReceivingMemory:
    """That of a state which is larger than what the heap has ready."""
    monkeypatch.setattr(receiving, "HEAP_BYTES", 1)
    return ReceivingMemory()


def test_what_was_made_ready_has_all_its_pages(memory: ReceivingMemory) -> None:
    memory.make_ready(LENGTH)
    taken = memory.take(LENGTH)
    assert pages_there(taken) == [True] * PAGES
    assert len(taken) == LENGTH


@pytest.mark.parametrize("length", [100, LENGTH // 2, LENGTH - 5, LENGTH + 5, 3 * LENGTH])
def test_where_another_length_comes_what_was_written_to_stays(memory: ReceivingMemory, length: int) -> None:
    memory.make_ready(LENGTH)
    assert memory._memory is not None
    memory._memory[0] = 7
    taken = memory.take(length)
    assert len(taken) == length
    assert int(taken[0]) == 7, "it is the same memory"
    pages = -(-length // mmap.PAGESIZE)
    assert pages_there(taken) == [True] * min(pages, PAGES) + [False] * (pages - PAGES)
    taken.fill_(1)
    assert int(taken.sum()) == length


def test_memory_is_used_once(memory: ReceivingMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiving, "staging", lambda length: torch.zeros(length, dtype=torch.uint8))
    memory.make_ready(LENGTH)
    first = memory.take(LENGTH)
    second = memory.take(LENGTH)
    second.fill_(1)
    assert not first.any()


def test_what_is_not_used_is_given_back(memory: ReceivingMemory) -> None:
    memory.make_ready(LENGTH)
    assert memory._memory is not None
    view = memoryview(memory._memory)
    memory.give_up()
    assert memory._memory is None
    mapping = view.obj
    view.release()
    mapping.close()  # nothing else refers to it, or this raises BufferError


def test_a_system_that_cannot_resize_a_mapping_takes_new_memory(
    memory: ReceivingMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Mapping(mmap.mmap):
        def resize(self, _length: int) -> None:
            raise SystemError("mmap: resizing not available--no mremap()")

    monkeypatch.setattr(mmap, "mmap", Mapping)
    memory.make_ready(LENGTH)
    monkeypatch.setattr(receiving, "staging", lambda length: torch.full((length,), 3, dtype=torch.uint8))
    assert memory.take(LENGTH + 1).tolist() == [3] * (LENGTH + 1)


def test_what_the_heap_has_ready_is_taken_from_there() -> None:
    memory = ReceivingMemory()
    memory.make_ready(HEAP_BYTES - 1)
    assert memory._memory is None


def test_without_memory_nothing_is_made_ready(memory: ReceivingMemory) -> None:
    memory.make_ready(2**62)
    assert len(memory.take(LENGTH)) == LENGTH


# ---- a newcomer in its first round


class Watched(ReceivingMemory):
    """Notes what was made ready, and what came.

    Attributes:
        expected: the length that was made ready.
        came: the lengths that were taken, each with whether memory was ready.
    """

    def __init__(self) -> None:
        super().__init__()
        self.expected = 0
        self.came: list[tuple[int, bool]] = []

    def make_ready(self, length: int) -> None:
        self.expected = length
        super().make_ready(length)

    def take(self, length: int) -> torch.Tensor:
        self.came.append((length, self._memory is not None))
        return super().take(length)


def watched() -> Watched:
    """In this process's place, of whatever size the state is."""
    pytest.MonkeyPatch().setattr(receiving, "HEAP_BYTES", 1)
    context.current._parts[ReceivingMemory] = memory = Watched()
    return memory


def be_a_newcomer(position: int = 0, replica_size: int = 1) -> None:
    os.environ.update(EDRIVER_POSITION=str(position), EDRIVER_REPLICA_SIZE=str(replica_size))


def enter(rank: int, receivers: tuple[int, ...], number: int = 1) -> None:
    place = replace(SINGLE_WORKER, round_id=RoundId(1, number), size=2, receivers=receivers)
    context.current.place.enter(replace(place, rank=rank))


def kept(state: Any) -> list[int]:
    """Where that lies which the optimizer keeps of its parameters."""
    values = (value for of_one in state.optimizer.state.values() for value in of_one.values() if value.ndim)
    return sorted((v.to_local() if hasattr(v, "to_local") else v).data_ptr() for v in values)


def ready(state: Any) -> list[int]:
    return sorted(tensor.data_ptr() for of in state._handlers["optimizer"]._ready.values() for tensor in of)


def wide_state(seed: int) -> TorchState:
    """As new_state, with more elements than the outlines of tensors have bytes."""
    torch.manual_seed(seed)
    model = Net(width=500)
    return TorchState(model, torch.optim.Adam(model.parameters(), lr=0.1), step=0, ema=torch.zeros(3))


def make_steps(state: TorchState, steps: int) -> None:
    for _ in range(steps):
        generator = torch.Generator().manual_seed(state.step)
        state.optimizer.zero_grad()
        state.model(torch.randn(6, 4, generator=generator)).square().sum().backward()
        state.optimizer.step()
        state.step += 1


def join(rehearses: bool, larger: int, rank: int) -> dict[str, Any]:
    """Rank 1 joins; `larger` is how many elements an attribute of rank 0 has that rank 1 has not."""
    memory, state = watched(), wide_state(seed=rank)
    found: dict[str, Any] = {}
    if rank == 0:
        make_steps(state, 3)
        state.ema = torch.zeros(3 + larger)
    else:
        be_a_newcomer()
        if rehearses:
            with state.rehearsal():
                make_steps(state, 2)
        before = fingerprint(state)
        state.prepare()
        assert fingerprint(state) == before, "preparing changes nothing"
        found["ready"] = ready(state)
    enter(rank, receivers=(1,))
    state.sync()
    if rank == 1:
        ((length, was_ready),) = memory.came
        found |= {"missed": length - memory.expected, "was ready": was_ready, "kept": kept(state)}
    synced, kept_before = fingerprint(state), kept(state)
    make_steps(state, 3)
    trained = fingerprint(state)
    state.restore()
    assert fingerprint(state) == synced, "what arrived is the last commit"
    assert kept(state) == kept_before
    return {**found, "synced": synced, "trained": trained, "left": (memory._memory, ready(state))}


@pytest.mark.parametrize("rehearses", [False, True], ids=["no-warm-up", "warm-up"])
def test_a_newcomer_receives_into_memory_that_is_there(rehearses: bool) -> None:
    source, newcomer = run_ranks(partial(join, rehearses, 0), 2)
    assert newcomer["was ready"]
    assert 0 <= newcomer["missed"] < SLACK
    assert newcomer["kept"] == newcomer["ready"] != []
    assert newcomer["left"] == (None, [])
    assert (newcomer["synced"], newcomer["trained"]) == (source["synced"], source["trained"])


def test_a_newcomer_that_expects_less_receives_all_the_same() -> None:
    source, newcomer = run_ranks(partial(join, False, 10**6), 2)
    assert newcomer["was ready"]
    assert newcomer["missed"] > 3 * 10**6
    assert (newcomer["synced"], newcomer["trained"]) == (source["synced"], source["trained"])


def other_optimizer(make: Callable[[Any], torch.optim.Optimizer], mine: int, rank: int) -> list[Any]:
    """Rank 1 expects what its optimizer would keep after a step, but rank 0 keeps nothing yet, or something else."""
    memory = watched()
    torch.manual_seed(rank)
    model = Net()
    state = TorchState(model, make(model.parameters()), step=0)
    if rank == 1:
        be_a_newcomer()
        state.prepare()
    elif mine:
        generator = torch.Generator().manual_seed(1)
        state.model(torch.randn(6, 4, generator=generator)).square().sum().backward()
        state.optimizer.step()
    enter(rank, receivers=(1,))
    state.sync()
    return [fingerprint(state), ready(state), memory._memory]


def both_moments(parameters: Any) -> torch.optim.Optimizer:
    # The process that holds the state has three, and the newcomer expects two.
    return torch.optim.Adam(parameters, amsgrad=dist.get_rank() == 0)


@pytest.mark.parametrize(
    ("make", "steps"),
    [
        pytest.param(torch.optim.Adam, 0, id="none-there-yet"),
        pytest.param(torch.optim.Adagrad, 1, id="there-from-the-beginning"),
        pytest.param(torch.optim.Adafactor, 1, id="of-another-shape"),
        pytest.param(partial(torch.optim.SGD, lr=0.1), 1, id="none-at-all"),
        pytest.param(both_moments, 1, id="one-more"),
    ],
)
def test_what_the_optimizer_keeps_arrives_whatever_was_expected(make: Any, steps: int) -> None:
    source, newcomer = run_ranks(partial(other_optimizer, make, steps), 2)
    assert newcomer == source
    assert newcomer[1:] == [[], None], "nothing is left of what was made ready"


@pytest.fixture
def newcomer(monkeypatch: pytest.MonkeyPatch) -> Watched:
    """This process is one, until the test ends."""
    monkeypatch.setattr(receiving, "HEAP_BYTES", 1)
    monkeypatch.setenv("EDRIVER_POSITION", "0")
    monkeypatch.setenv("EDRIVER_REPLICA_SIZE", "1")
    return watched()


def test_memory_is_given_back_where_nothing_comes(newcomer: Watched) -> None:
    memory, state = newcomer, new_state(seed=1)
    state.prepare()
    assert memory._memory is not None
    assert ready(state)
    enter(0, receivers=())
    state.sync()
    assert memory._memory is None
    assert not ready(state)


def lose_the_source(rank: int) -> Any:
    memory, state = watched(), new_state(seed=rank)
    be_a_newcomer()
    state.prepare()
    enter(rank, receivers=(1,))
    if rank == 0:
        dist.barrier()
        os._exit(0)
    before = fingerprint(state)
    dist.barrier()
    with pytest.raises(RuntimeError):
        state.sync()
    assert fingerprint(state) == before
    return memory._memory, ready(state)


def test_memory_is_given_back_where_the_source_is_lost() -> None:
    assert run_ranks(lose_the_source, 2, dying={0}) == [None, (None, [])]


def test_survivors_make_nothing_ready(newcomer: Watched) -> None:
    """A worker that others wait for has a place already when it calls `run` again."""
    state = new_state(seed=1)
    enter(0, receivers=())
    state.prepare()
    assert not newcomer.expected
    assert not ready(state)


def test_the_first_workers_of_a_run_make_nothing_ready(newcomer: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for them, and nothing comes."""
    monkeypatch.delenv("EDRIVER_REPLICA_SIZE")
    state = new_state(seed=1)
    state.prepare()
    assert not newcomer.expected
    assert not ready(state)


def test_a_state_that_cannot_be_sent_is_no_error_of_the_newcomer(newcomer: Watched) -> None:
    state = TorchState(Net(), sparse=0)
    state.sparse = torch.eye(3).to_sparse()
    state.prepare()
    assert not newcomer.expected


# ---- a sharded model


def new_sharded() -> ShardedState:
    return ShardedState(build=new_model, optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=0.05), step=0)


def make_step(state: ShardedState) -> None:
    state.optimizer.zero_grad()
    loss_of(state.model, state.step).backward()  # type: ignore[no-untyped-call]
    state.optimizer.step()
    state.step += 1
    state.check_host_updates()


def make_two_steps(state: ShardedState) -> None:
    make_step(state)
    make_step(state)


def join_sharded(prepares: bool, rehearses: bool, worker: int) -> dict[str, Any]:
    """Two replicas, of which one comes later."""
    memory, state = watched(), new_sharded()
    found: dict[str, Any] = {}

    def before() -> None:
        if worker < SHARDS:
            return
        be_a_newcomer(worker % SHARDS, SHARDS)
        if rehearses:
            state.rehearse(make_two_steps, contextlib.nullcontext)
        if prepares:
            state.prepare()
            found["ready"] = ready(state)

    for _ in rounds_of(worker, WORKERS, [[0, 1], [0, 1, 2, 3]], before=before):
        state.bind(Rounds())
        state.sync()
        if "ready" in found and "kept" not in found:
            ((length, was_ready),) = memory.came
            found |= {"missed": length - memory.expected, "was ready": was_ready, "kept": kept(state)}
        make_two_steps(state)
    return {**found, "digest": shard_digest(state), "left": (memory._memory, ready(state))}


@pytest.mark.parametrize("rehearses", [False, True], ids=["no-warm-up", "warm-up"])
def test_a_replica_that_joins_receives_its_shards_into_memory_that_is_there(rehearses: bool) -> None:
    prepared = run_ranks(partial(join_sharded, True, rehearses), WORKERS)
    for newcomer in prepared[SHARDS:]:
        assert newcomer["was ready"]
        assert 0 <= newcomer["missed"] < SLACK
        assert newcomer["kept"] == newcomer["ready"] != []
    others = run_ranks(partial(join_sharded, False, rehearses), WORKERS)
    assert [one["digest"] for one in prepared] == [one["digest"] for one in others]
    assert [one["left"] for one in itertools.chain(prepared, others)] == [(None, [])] * (2 * WORKERS)
