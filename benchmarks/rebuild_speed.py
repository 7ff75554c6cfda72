"""REBUILD: the process group of a round at 4 workers, beside a bare init_process_group over the same kind of store.

    python -m benchmarks.rebuild_speed        prints one JSON object: seconds by name

Each is measured from the moment at which the first worker begins to that at which the last has its group.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from statistics import median

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from edriver.model.ids import RoundId
from edriver.model.plan import Assignment
from edriver.model.store_address import StoreAddress
from edriver.worker.group.membership_proof import SECRET_BYTES
from edriver.worker.group.round_group import RoundGroup
from edriver.worker.group.store import StoreClient
from edriver.worker.group.store_transport import StoreTransport

SIZE, REPEATS, TIMEOUT = 4, 20, 60.0
Span = tuple[float, float]


def main() -> None:
    """Measure, taking turns, and print."""
    os.environ |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(SIZE)
    pipes = [context.Pipe() for _ in range(SIZE)]
    workers = [context.Process(target=_worker, args=(rank, theirs, barrier)) for rank, (_, theirs) in enumerate(pipes)]
    for worker in workers:
        worker.start()
    ports = [ours.recv() for ours, _ in pipes]
    for ours, _ in pipes:
        ours.send(ports[0])
    found: list[dict[str, list[Span]]] = [ours.recv() for ours, _ in pipes]
    for worker in workers:
        worker.join()
    print(json.dumps({name: median(_lengths([spans[name] for spans in found])) for name in found[0]}))


def _lengths(by_worker: list[list[Span]]) -> list[float]:
    """For each time, from the first worker's beginning to the last one's end."""
    return [max(end for _, end in spans) - min(begin for begin, _ in spans) for spans in zip(*by_worker, strict=True)]


def _worker(rank: int, pipe: Connection, barrier: Barrier) -> None:
    group = RoundGroup("127.0.0.1")
    pipe.send(group.store.port)
    port = pipe.recv()
    found: dict[str, list[Span]] = {"group": [], "bare group": [], "teardown": [], "bare destroy": []}

    def build(number: int) -> None:
        place = Assignment(
            round_id=RoundId(1, number),
            rank=rank,
            size=SIZE,
            local_rank=rank,
            local_size=SIZE,
            cross_rank=0,
            cross_size=1,
            store=StoreAddress("127.0.0.1", port),
            sources=(0,),
            receivers=(),
            secret=bytes(SECRET_BYTES),
        )
        group.build(place, TIMEOUT)

    stores: list[StoreClient] = []

    def build_bare(number: int) -> None:
        store = StoreClient("127.0.0.1", port, TIMEOUT, StoreTransport())
        store.connect()
        stores.append(store)  # what a client has set goes when it hangs up, and torch holds on to its C++ half only
        prefixed = PrefixStore(f"bare/{number}", store)
        dist.init_process_group("gloo", store=prefixed, rank=rank, world_size=SIZE, timeout=timedelta(seconds=TIMEOUT))

    for number in range(1, REPEATS + 1):
        found["group"].append(_span(barrier, lambda number=number: build(number)))  # type: ignore[misc]
        found["teardown"].append(_span(barrier, group.teardown))
        found["bare group"].append(_span(barrier, lambda number=number: build_bare(number)))  # type: ignore[misc]
        found["bare destroy"].append(_span(barrier, dist.destroy_process_group))
    pipe.send(found)


def _span(barrier: Barrier, run: Callable[[], object]) -> Span:
    barrier.wait()
    began = time.monotonic()
    run()
    return began, time.monotonic()


if __name__ == "__main__":
    main()
