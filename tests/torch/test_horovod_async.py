"""Horovod's `*_async`: they wait for nobody, their data moves without further calls, and their errors come later."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

import edriver.horovod as hvd
from edriver.horovod.process_sets import all_sets
from tests.torch.ranks import run_ranks
from tests.torch.turns import Turns

SIZE = 3


def start(rank: int) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(SIZE), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    hvd.init()


def kinds(rank: int) -> dict[str, tuple[Callable[[], Any], Callable[[Any], Any], Any]]:
    """By name: how an operation is started, how its result is read, and what that has to be."""
    in_place, written = torch.full((2,), float(rank)), torch.full((2,), float(rank))
    entry = torch.sparse_coo_tensor(torch.tensor([[rank]]), torch.tensor([2.0]), (SIZE,))

    def sparse() -> Any:
        return hvd.sparse_allreduce_async(entry, "entries", hvd.Sum)

    return {
        "allreduce": (lambda: hvd.allreduce_async(torch.tensor([rank]), op=hvd.Sum), list_of, [3]),
        "allreduce_": (lambda: hvd.allreduce_async_(in_place, op=hvd.Max), lambda got: got is in_place, True),
        "grouped_allreduce": (
            lambda: hvd.grouped_allreduce_async([torch.tensor([rank]), torch.tensor([2.0 * rank])], op=hvd.Sum),
            lists_of,
            [[3], [6.0]],
        ),
        "allgather": (lambda: hvd.allgather_async(torch.full((rank,), rank)), list_of, [1, 2, 2]),
        "grouped_allgather": (
            lambda: hvd.grouped_allgather_async([torch.full((rank,), rank), torch.tensor([-rank])]),
            lists_of,
            [[1, 2, 2], [0, -1, -2]],
        ),
        "broadcast": (lambda: hvd.broadcast_async(torch.tensor([rank]), 2), list_of, [2]),
        "broadcast_": (
            lambda: hvd.broadcast_async_(written, 1),
            lambda got: got is written and list_of(got),
            [1.0] * 2,
        ),
        "alltoall": (lambda: hvd.alltoall_async(torch.full((SIZE,), rank)), lists_of, [[0, 1, 2], [1, 1, 1]]),
        "reducescatter": (
            lambda: hvd.reducescatter_async(torch.arange(4.0), op=hvd.Sum),
            list_of,
            {0: [0.0, 3.0], 1: [6.0], 2: [9.0]}[rank],
        ),
        "grouped_reducescatter": (
            lambda: hvd.grouped_reducescatter_async([torch.arange(3)], op=hvd.Sum),
            lists_of,
            [[3 * rank]],
        ),
        "sparse": (sparse, lambda got: list_of(got.to_dense()), [2.0] * SIZE),
    }


def list_of(tensor: Any) -> Any:
    return tensor.tolist()


def lists_of(tensors: Any) -> Any:
    return [tensor.tolist() for tensor in tensors]


def result_of(handle: Any) -> Any:
    return handle() if callable(handle) else hvd.synchronize(handle)


def nobody_waits(rank: int) -> None:
    """Each rank in turn is the first to start all kinds, and does nothing more until the others have the results."""
    start(rank)
    turns = Turns(rank)
    for first in range(SIZE):
        others = [other for other in range(SIZE) if other != first]
        if rank != first:
            turns.hear(f"{first}: started", first)
        handles = {name: (begin(), read, expected) for name, (begin, read, expected) in kinds(rank).items()}
        turns.say(f"{first}: started")
        if rank == first:
            turns.hear(f"{first}: got all", *others)
        for name, (handle, read, expected) in handles.items():
            assert read(result_of(handle)) == expected, name
        turns.say(f"{first}: got all")


def errors_come_later(rank: int) -> None:
    """All ranks raise each error, where they wait; what is not wrong goes on, in the order of the calls."""
    start(rank)
    turns = Turns(rank)
    if rank:
        turns.hear("started", 0)
    wrong = [
        hvd.allreduce_async(torch.ones(2 + (rank == 2)), name="lengths"),
        hvd.allgather_async(torch.tensor(1.0), name="scalar"),
        hvd.allreduce_async(torch.ones(1), name="a") if rank else hvd.broadcast_async(torch.ones(1), 0, name="b"),
    ]
    right = hvd.allreduce_async(torch.tensor([rank]), op=hvd.Sum)
    turns.say("started")
    assert hvd.synchronize(right).tolist() == [3]
    assert all(hvd.poll(handle) for handle in wrong)
    with pytest.raises(hvd.MismatchError, match=r"rank 0 .*'lengths'.*\(2\).*rank 2 .*'lengths'.*\(3\)"):
        hvd.synchronize(wrong[0])
    with pytest.raises(ValueError, match="allgather 'scalar': a tensor without dimensions has no rows"):
        hvd.synchronize(wrong[1])
    with pytest.raises(hvd.MismatchError, match=r"rank 0 called broadcast 'b'.* rank 1 called allreduce 'a'"):
        hvd.synchronize(wrong[2])
    assert hvd.synchronize(wrong[2]) is None
    assert hvd.allreduce(torch.tensor([rank]), op=hvd.Sum).tolist() == [3]
    outside = hvd.add_process_set([0, 1])
    if rank == 2:
        with pytest.raises(ValueError, match="rank 2 is not a member"):
            hvd.allreduce_async(torch.ones(1), process_set=outside)


def among_others(rank: int) -> None:
    """They do not get in the way of what the training thread calls meanwhile, in any group and in any order."""
    start(rank)
    pairs = [hvd.add_process_set([0, 1]), hvd.add_process_set([0, 2]), hvd.add_process_set([1, 2])]
    kept = torch.nn.Linear(3, 2)
    ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(kept.parameters(), 0.1), kept.named_parameters())
    for step in range(6):
        handles = [hvd.allreduce_async(torch.full((50_000,), float(rank + step)), op=hvd.Sum) for _ in range(3)]
        total = torch.tensor([rank])
        dist.all_reduce(total)
        assert total.tolist() == [3]
        torch.autograd.backward(ddp(torch.ones(4, 3)).sum())
        optimizer.zero_grad()
        torch.autograd.backward(kept(torch.ones(1, 3) * rank).sum())
        handles.append(hvd.allgather_async(torch.tensor([rank])))
        optimizer.step()
        assert kept.weight.grad is not None
        assert torch.equal(kept.weight.grad, torch.ones(2, 3))
        assert hvd.allreduce(torch.tensor([rank]), op=hvd.Sum).tolist() == [3]
        assert hvd.synchronize(handles.pop()).tolist() == [0, 1, 2]
        assert [hvd.synchronize(handle)[0].item() for handle in handles] == [3.0 + 3 * step] * 3
    # Members of several sets need not begin them in one order.
    ones = torch.ones(1)
    if rank == 0:
        both = [hvd.allreduce_async(ones, op=hvd.Sum, process_set=pair) for pair in pairs[:2]]
    elif rank == 2:
        hvd.allreduce(ones, op=hvd.Sum, process_set=pairs[1])
        hvd.allreduce(ones, op=hvd.Sum, process_set=pairs[2])
        both = []
    else:
        hvd.allreduce(ones, op=hvd.Sum, process_set=pairs[2])
        both = [hvd.allreduce_async(ones, op=hvd.Sum, process_set=pairs[0])]
    assert [hvd.synchronize(handle).tolist() for handle in both] == [[2.0]] * len(both)
    # Nor do all of them have to wait, or not to.
    for waits in ([0], [1, 2], [0, 1, 2], []):
        earlier = hvd.allreduce_async(torch.tensor([rank]), op=hvd.Sum)
        if rank in waits:
            got = hvd.broadcast_(torch.tensor([rank]), 1)
        else:
            got = hvd.synchronize(hvd.broadcast_async_(torch.tensor([rank]), 1))
        assert got.tolist() == [1]
        unequal = torch.ones(1 + rank // 2)
        with pytest.raises(hvd.MismatchError, match=r"\(1\).*\(2\)"):
            hvd.allreduce(unequal) if rank in waits else hvd.synchronize(hvd.allreduce_async(unequal))
        assert hvd.synchronize(earlier).tolist() == [3]


def with_modes(rank: int) -> None:
    """They compute as their caller would: its inference mode, no gradients."""
    start(rank)
    with torch.inference_mode():
        tensor = torch.full((2,), float(rank))
        assert hvd.synchronize(hvd.allreduce_async_(tensor, op=hvd.Sum)) is tensor
        assert hvd.synchronize(hvd.allgather_async(tensor)).is_inference()
        hvd.synchronize(hvd.broadcast_async_(tensor, 1))
    weight = torch.nn.Parameter(torch.full((2,), float(rank)))
    gathered = hvd.synchronize(hvd.allgather_async(weight))
    assert not gathered.requires_grad
    assert not gathered.is_inference()
    hvd.synchronize(hvd.broadcast_async_(weight, 2))
    assert weight.tolist() == [2.0, 2.0]


def with_joins(rank: int) -> int:
    """A rank that has joined adds zeros to what others do not wait for."""
    start(rank)
    many: list[int] = []
    for batch in range(rank + 1):
        many = [hvd.allreduce_async(torch.tensor([1.0]), op=hvd.Sum) for _ in range(3)]
        if batch < rank:  # for the last ones nobody waits before joining
            assert [hvd.synchronize(handle).item() for handle in many] == [3.0 - batch] * 3
            assert hvd.allreduce(torch.tensor([1.0]), op=hvd.Sum).tolist() == [2.0 - batch]
    joined_last = hvd.join()
    assert [hvd.synchronize(handle).item() for handle in many] == [3.0 - rank] * 3
    assert hvd.allreduce(torch.tensor([rank]), op=hvd.Sum).tolist() == [3]
    return joined_last


def after_the_round(rank: int) -> None:
    """What a round leaves behind does not reach into the next one, and nobody waits for it for ever."""
    start(rank)
    turns = Turns(rank)
    entries = torch.ones(3).to_sparse()
    left = [hvd.allreduce_async(torch.ones(1)), hvd.allreduce_async(torch.ones(1))] if rank else []
    kept = hvd.sparse_allreduce_async(entries, "entries", hvd.Sum) if rank else None
    turns.say("left")
    turns.hear("left", 0, 1, 2)
    hvd.shutdown()
    turns.say("shut down")
    turns.hear("shut down", 0, 1, 2)
    if kept is not None:
        with pytest.raises(hvd.HorovodInternalError):  # the round is over, or another rank has left it before this one
            kept()
        assert hvd.synchronize(left[0]) is None
    hvd.init()
    assert hvd.synchronize(hvd.allreduce_async(torch.tensor([rank]), op=hvd.Sum)).tolist() == [3]
    assert len(all_sets()) == 1


@pytest.mark.parametrize("function", [nobody_waits, errors_come_later, among_others, with_modes, after_the_round])
def test_over_three_ranks(function: Callable[[int], None]) -> None:
    run_ranks(function, SIZE)


def test_members_that_have_joined_take_part() -> None:
    assert run_ranks(with_joins, SIZE) == [2, 2, 2]
