"""hvd.init and hvd.shutdown in a world that never changes: as often as a script likes, in any order of the ranks."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import permutations
from random import Random

import pytest
import torch
import torch.distributed as dist

import edriver.horovod as hvd
from tests.torch.ranks import run_ranks
from tests.torch.turns import LIMIT, Turns

SIZE = 3
ORDERS = [*permutations(range(SIZE)), *(tuple(Random(seed).sample(range(SIZE), SIZE)) for seed in range(4))]


def enter(rank: int, agent: bool) -> Turns:
    """Have this process's environment be torchrun's; the group that is there already is ended.

    Args:
        rank: of this process.
        agent: whether torchrun's agent serves the store, and not rank 0.

    Returns:
        The turns; on rank 0 they hold the server that reserves the port, which is the agent's where there is one.
    """
    turns = Turns(rank)
    port = [0]
    if rank == 0:  # a port that nobody else has: torch shares a server between all in a process that ask for its port
        master = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=LIMIT, multi_tenant=True)  # type: ignore[attr-defined]
        turns.master = master  # type: ignore[attr-defined]
        port = [master.port]
    dist.broadcast_object_list(port, src=0)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(SIZE), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port[0])}
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = str(agent)
    dist.barrier()
    turns.say("leaves the first group")
    turns.hear("leaves the first group", *range(SIZE))
    dist.destroy_process_group()
    return turns


def work(rank: int) -> None:
    """What is agreed on, reduced, and started in the background."""
    assert (hvd.rank(), hvd.size()) == (rank, SIZE)
    handle = hvd.allreduce_async(torch.tensor([rank]), op=hvd.Sum)
    pair = hvd.add_process_set([0, 2])
    assert pair.process_set_id == 1
    assert hvd.allgather(torch.tensor([rank])).tolist() == [0, 1, 2]
    if pair.included():
        assert hvd.allreduce(torch.tensor([rank]), op=hvd.Sum, process_set=pair).tolist() == [2]
    assert hvd.synchronize(handle).tolist() == [3]


def cycles(rank: int, agent: bool) -> None:
    """In each cycle the ranks leave in another order, and whoever has left joins again at once."""
    turns = enter(rank, agent)
    for cycle, order in enumerate(ORDERS):
        turns.say(f"{cycle}: about to join")
        hvd.init()
        assert hvd.is_initialized()
        if (rank, cycle, agent) == (0, 0, False):
            # Only now: others may have connected to this server, which init's store shares, before rank 0 called init.
            del turns.master  # type: ignore[attr-defined]
        work(rank)
        before = order[: order.index(rank)]
        turns.hear(f"{cycle}: about to leave", *before)
        # All before this one have left, and are about to join again: they wait for it there.
        turns.hear(f"{cycle + 1}: about to join", *before)
        turns.say(f"{cycle}: about to leave")
        hvd.shutdown()
        assert not hvd.is_initialized()
        hvd.shutdown()
    turns.say(f"{len(ORDERS)}: about to join")
    hvd.init()
    work(rank)


def cycles_with_an_agent(rank: int) -> None:
    cycles(rank, agent=True)


def cycles_without_an_agent(rank: int) -> None:
    cycles(rank, agent=False)


def cycles_in_a_group_of_the_scripts(rank: int) -> None:
    """The script's own group lives through all of them."""
    turns = Turns(rank)
    for cycle, order in enumerate(ORDERS):
        hvd.init()
        work(rank)
        turns.hear(f"{cycle}: left", *order[: order.index(rank)])
        hvd.shutdown()
        turns.say(f"{cycle}: left")
        total = torch.tensor([rank])
        dist.all_reduce(total)
        assert total.tolist() == [3]


def sets_are_gone(rank: int) -> None:
    """As in Horovod, process sets and what belongs to them end with shutdown; `init` may be given the same ones."""
    hvd.init()
    weight = torch.nn.Parameter(torch.zeros(2))
    given, added = hvd.ProcessSet([0, 1]), hvd.add_process_set([1, 2])
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], 1.0))
    for _ in range(2):
        hvd.shutdown()
        assert (given.process_set_id, added.process_set_id) == (None, None)
        with pytest.raises(ValueError, match=r"ProcessSet\(process_set_id=None, ranks=\[1, 2\]\) has not been added"):
            added.size()
        with pytest.raises(ValueError, match="Horovod has not been initialized"):
            hvd.allreduce(torch.ones(1))
        hvd.init(process_sets=[given])
        assert (given.process_set_id, added.process_set_id) == (1, None)
        with pytest.raises(ValueError, match="has not been added"):
            hvd.allreduce(torch.ones(1), process_set=added)
        if given.included():
            assert hvd.allreduce(torch.tensor([rank + 1]), op=hvd.Sum, process_set=given).tolist() == [3]
        hvd.add_process_set(added)
        if added.included():
            assert hvd.allreduce(torch.tensor([rank]), op=hvd.Sum, process_set=added).tolist() == [3]
        optimizer.zero_grad()  # it outlives shutdown, as in Horovod
        torch.autograd.backward((weight * rank).sum())
        optimizer.step()
        assert weight.grad is not None
        assert weight.grad.tolist() == [1.0, 1.0]


def clean_after_a_mismatch(rank: int) -> None:
    """A rank that is a call behind the others gets an error of theirs when they leave, and all begin anew."""
    calls = 0
    for round_number in range(3):
        hvd.init()
        behind = round_number % SIZE
        try:
            if rank == behind:
                hvd.barrier()  # which the others do not make
            for _ in range(3):
                hvd.allreduce(torch.ones(2))
        except hvd.MismatchError as error:
            assert f"rank {behind} called barrier" in str(error)  # noqa: PT017
            calls += 1
            if rank == behind:
                with pytest.raises(hvd.HorovodInternalError):
                    hvd.synchronize(hvd.allreduce_async(torch.ones(2)))
        hvd.shutdown()
    hvd.init()
    work(rank)
    assert calls == 3


@pytest.mark.parametrize(
    "function",
    [
        cycles_with_an_agent,
        cycles_without_an_agent,
        cycles_in_a_group_of_the_scripts,
        sets_are_gone,
        clean_after_a_mismatch,
    ],
)
def test_over_three_ranks(function: Callable[[int], None]) -> None:
    run_ranks(function, SIZE)
