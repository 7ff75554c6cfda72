"""Runs a function of a test module in several processes that share a Gloo group over loopback."""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from tests.torch.forks import FORKS

LIMIT_SECONDS = 300.0


def run_ranks(function: Callable[[int], Any], size: int, dying: Collection[int] = ()) -> list[Any]:
    """Call `function(rank)` in `size` processes.

    Args:
        function: of a module below tests/, at its top level.
        size: how many.
        dying: ranks that kill themselves; all others must end well.

    Returns:
        What each rank returned; None for those that died.
    """
    ranks: list[_Rank] = []
    try:
        ranks.extend(_Rank.start(function, rank, size, all_live=not dying) for rank in range(size))
        port = ranks[0].receive()
        for other in ranks[1:]:
            with contextlib.suppress(BrokenPipeError):
                other.pipe.send(port)
        return _outcomes(ranks, dying)
    finally:
        for one in ranks:
            one.end()


@dataclass(frozen=True)
class _Rank:
    """One of the processes, and the pipe to it: first the store's port, then how the function has ended."""

    process: BaseProcess
    pipe: Connection

    @classmethod
    def start(cls, function: Callable[[int], Any], rank: int, size: int, all_live: bool) -> _Rank:
        here, there = FORKS.Pipe()
        process = FORKS.Process(target=_main, args=(there, function, rank, size, all_live))
        process.start()
        there.close()
        return cls(process, here)

    def receive(self) -> Any:
        assert self.pipe.poll(LIMIT_SECONDS), "a rank neither ends nor answers"
        return self.pipe.recv()

    def outcome(self, may_die: bool) -> Any:
        """What the function returned; None if it did not return, and need not."""
        try:
            error, value = self.receive()
        except (EOFError, ConnectionResetError):
            error, value = "it died", None
        assert may_die or not error, error
        return value

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _outcomes(ranks: list[_Rank], dying: Collection[int]) -> list[Any]:
    """What each rank returned. The first that fails is the one that is shown: the others may wait for it."""
    left, found = {one.pipe: rank for rank, one in enumerate(ranks)}, dict[int, Any]()
    while left:
        ready = wait(left, LIMIT_SECONDS)
        assert ready, f"ranks {sorted(left.values())} neither end nor answer"
        for pipe in ready:
            rank = left.pop(pipe)  # type: ignore[call-overload]
            found[rank] = ranks[rank].outcome(may_die=rank in dying)
    return [found[rank] for rank in range(len(ranks))]


def _main(pipe: Connection, function: Callable[[int], Any], rank: int, size: int, all_live: bool) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    limit = timedelta(seconds=LIMIT_SECONDS / 2)
    if rank == 0:
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=limit)
        pipe.send(store.port)
    else:
        store = TCPStore("127.0.0.1", pipe.recv(), is_master=False, timeout=limit)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=limit)
    try:
        value = function(rank)
    except BaseException:  # noqa: BLE001  the test that waits for it shows it
        pipe.send((f"rank {rank}: {traceback.format_exc()}", None))
        os._exit(1)
    pipe.send(("", value))
    if all_live:  # one that left early would break the connections of the others
        dist.barrier()
    os._exit(0)
