"""How often severing leaves a rank hanging, where no member is lost: collectives that are cut at a random moment.

    python -m benchmarks.severing [--cuts 60] [--megabytes 8] [--at-once]

All ranks of a Gloo group are in one process, one for each collective and size. They make the same collective again and
again; then each is severed, up to 20 ms apart, as an abort reaches workers. A rank stops before its next collective
once it is severed, as a sharded model does in its next module. Prints a JSON line for each collective and size: how
many cuts left a rank hanging, and the milliseconds from the first cut to the end of the last rank, where all ended.
With `--at-once` connections are shut down whether a message is under way or not; Gloo may then end the process, and the
line says so.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent import futures
from datetime import timedelta
from typing import Any, Final

import torch
from torch._C._distributed_c10d import HashStore, ProcessGroupGloo

from edriver.system.sockets import duplicate
from edriver.worker.backend.gloo.cutting import Cutter
from edriver.worker.backend.gloo.sever import GlooDevice, gloo_devices

HANGS: Final = 4.0
"""Seconds after which a rank that has not ended counts as hanging."""

APART: Final = 0.02
"""Seconds within which all ranks are severed."""

EVERY: Final = 0.005
"""Seconds between two attempts to sever a rank."""

SIZES: Final = (2, 3, 4)


def _gather(rank: Any, numbers: int, size: int) -> Any:
    return rank._allgather_base(torch.empty(numbers * size), torch.ones(numbers))


def _reduce(rank: Any, numbers: int, _size: int) -> Any:
    return rank.allreduce([torch.ones(numbers)])


def _exchange(rank: Any, numbers: int, size: int) -> Any:
    return rank.alltoall_base(torch.empty(numbers * size), torch.ones(numbers * size), [], [])


def _broadcast(rank: Any, numbers: int, _size: int) -> Any:
    return rank.broadcast(torch.ones(numbers), 0)


COLLECTIVES: Final[dict[str, Callable[[Any, int, int], Any]]] = {
    "all-gather": _gather,
    "all-reduce": _reduce,
    "all-to-all": _exchange,
    "broadcast": _broadcast,
}


def main() -> int:
    """Measure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.severing", description=__doc__.partition("\n")[0])
    parser.add_argument("--cuts", type=int, default=60)
    parser.add_argument("--megabytes", type=float, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at-once", action="store_true")
    parser.add_argument("--of", nargs=2, metavar=("COLLECTIVE", "RANKS"), help="only these, in this process")
    flags = parser.parse_args()
    if flags.of is None:
        for name in COLLECTIVES:
            for size in SIZES:
                command = [sys.executable, "-m", "benchmarks.severing", *sys.argv[1:], "--of", name, str(size)]
                if code := subprocess.run(command, timeout=flags.cuts * 2 * HANGS).returncode:
                    _print({"collective": name, "ranks": size, "ended by Gloo": -code})
        return 0
    torch.set_num_threads(1)
    chance = random.Random(flags.seed)
    begin, size = COLLECTIVES[flags.of[0]], int(flags.of[1])
    took = [_cut(begin, size, int(flags.megabytes * 2**18), chance, flags.at_once) for _ in range(flags.cuts)]
    ended = sorted(seconds * 1000 for seconds in took if seconds is not None)
    line = {"collective": flags.of[0], "ranks": size, "cuts": flags.cuts, "hung": flags.cuts - len(ended)}
    if ended:
        line |= {"median_ms": round(statistics.median(ended)), "most_ms": round(ended[-1])}
    _print(line)
    os._exit(0)  # what hangs would keep the process from ending


def _print(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def _cut(
    begin: Callable[[Any, int, int], Any], size: int, numbers: int, chance: random.Random, at_once: bool
) -> float | None:
    """Sever a group amid collectives; seconds until all ranks have ended, None: one of them hangs."""
    before = gloo_devices().keys()
    ranks = _group(size)
    stopped, ended = set[int](), [0.0] * size

    def train(number: int) -> None:
        try:
            while number not in stopped:
                begin(ranks[number], numbers, size).wait()
        except RuntimeError:
            pass
        ended[number] = time.monotonic()

    threads = [threading.Thread(target=train, args=(number,), daemon=True) for number in range(size)]
    for thread in threads:
        thread.start()
    time.sleep(chance.uniform(0.02, 0.12))
    began = time.monotonic()
    due = {inode: began + chance.uniform(0, APART) for inode in gloo_devices().keys() - before}
    cutters = {inode: Cutter() for inode in due}
    while any(thread.is_alive() for thread in threads) and time.monotonic() < began + HANGS:
        devices = gloo_devices()
        for number, (inode, at) in enumerate(due.items()):
            if time.monotonic() >= at and inode in devices:
                stopped.add(number)
                _shut(devices[inode]) if at_once else cutters[inode].cut([devices[inode]])
        time.sleep(EVERY)
    if any(thread.is_alive() for thread in threads):
        _HANGING.append(ranks)
        return None
    return max(ended) - began


_HANGING: Final[list[list[Any]]] = []
"""Groups that can never be torn down."""


def _shut(device: GlooDevice) -> None:
    for descriptor in device.connections:
        connection = duplicate(descriptor.fd, descriptor.inode)
        if connection is not None:
            with connection, contextlib.suppress(OSError):  # Gloo has closed it
                connection.shutdown(socket.SHUT_RD)


def _group(size: int) -> list[Any]:
    store = HashStore()

    def rank(number: int) -> Any:
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # torch's stub lacks it
        options._devices = [ProcessGroupGloo.create_default_device(lazy_init=False)]
        options._timeout = timedelta(minutes=10)
        return ProcessGroupGloo(store, number, size, options)

    with futures.ThreadPoolExecutor(size) as threads:
        return list(threads.map(rank, range(size)))


if __name__ == "__main__":
    sys.exit(main())
