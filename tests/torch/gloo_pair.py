"""A Gloo group of two ranks in one process, and a connection over loopback."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from concurrent import futures
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import HashStore, ProcessGroupGloo

from edriver.worker.backend.gloo.cutting import Cutter
from edriver.worker.backend.gloo.sever import GlooDevice, gloo_devices

LIMIT = timedelta(seconds=60)
"""Longer than any test: what is freed was freed by severing."""


@contextlib.contextmanager
def loopback() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection over loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname(), 10)
        far, _ = listener.accept()
        with near, far:
            yield near, far


class Pair:
    """The two ranks of a Gloo group, both in this process; if it is lazy, they connect at first use."""

    def __init__(self, lazy: bool = False) -> None:
        store = HashStore()
        self._others = gloo_devices().keys()

        def rank(number: int) -> Any:
            options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # torch's stub lacks it
            options._devices = [ProcessGroupGloo.create_default_device(lazy_init=lazy)]
            options._timeout = LIMIT
            return ProcessGroupGloo(store, number, 2, options)

        with futures.ThreadPoolExecutor(2) as threads:
            self._ranks: list[Any] = list(threads.map(rank, range(2)))

    def devices(self) -> dict[int, GlooDevice]:
        """Those of this group."""
        return {inode: device for inode, device in gloo_devices().items() if inode not in self._others}

    def cut(self) -> int:
        """Cut its connections, once no message is under way; returns how many had a waiter."""
        cutter = Cutter()
        deadline = time.monotonic() + LIMIT.total_seconds()
        waiting = 0
        while True:
            cut = cutter.cut(self.devices().values())
            waiting += cut.waiting
            if not cut.under_way:
                return waiting
            assert time.monotonic() < deadline
            time.sleep(0.001)

    def all_reduce(self) -> list[float]:
        tensors = [torch.ones(1), torch.ones(1)]
        works = [rank.allreduce([tensor]) for rank, tensor in zip(self._ranks, tensors, strict=True)]
        for work in works:
            work.wait()
        return [float(tensor) for tensor in tensors]

    def broadcast(self, rank: int, tensor: torch.Tensor) -> Any:
        """Begin this rank's part of a broadcast from rank 0; returns the work."""
        return self._ranks[rank].broadcast(tensor, 0)

    def hang(self) -> None:
        """An all_reduce that rank 1 never joins."""
        self._ranks[0].allreduce([torch.ones(1)]).wait()
