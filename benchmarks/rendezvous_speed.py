"""How long it takes until so many nodes have joined one rendezvous: python -m benchmarks.rendezvous_speed --nodes 4000.

A simulated node is torch's DynamicRendezvousHandler in a thread of its own, from the call of next_rendezvous to its
return: join, compare-and-set, polls, the rank, and the store's answer where rank 0's address is. The threads of a
process share a connection and the replica of the state, which in torchrun are each agent's own; all else is each
node's.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
import time
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

from edriver.agent.health.cpu_use import processor_seconds
from edriver.rendezvous.address import CREDENTIALS_FILE, credentials_of

STACK_BYTES = 256 * 1024
TIMEOUT = 300.0


def join_all(number: int, nodes: int, total: int, credentials: str, pipe: Pipe) -> None:
    """Have the nodes of one process join; sends the seconds of each, and the processor time of all."""
    from edriver.rendezvous.torchrun.backend import EdriverBackend
    from edriver.rendezvous.torchrun.client import RendezvousClient
    from edriver.rendezvous.torchrun.engine import EdriverRendezvousHandler
    from edriver.rendezvous.torchrun.replica import Replica
    from edriver.rendezvous.torchrun.store import RendezvousStore

    shown = credentials_of(credentials)
    replica = Replica()
    connection = RendezvousClient(shown.drivers[0], shown)
    handlers = []
    for node in range(nodes):
        backend = EdriverBackend(connection, replica, "scale", (total, total), 60.0, TIMEOUT)
        store = RendezvousStore(connection, "scale", TIMEOUT)
        address = "127.0.0.1" if node == 0 and number == 0 else f"node{number}-{node}.example.com"
        handlers.append(
            EdriverRendezvousHandler.from_backend(
                "scale", store, backend, total, total, address, keep_alive_interval=20
            )
        )
    joined: list[tuple[float, int]] = []
    go = threading.Event()

    def join(handler: EdriverRendezvousHandler) -> None:
        go.wait()
        found = handler.next_rendezvous()
        joined.append((time.time(), found.rank))
        handler._stop_heartbeats()

    threading.stack_size(STACK_BYTES)
    threads = [threading.Thread(target=join, args=(handler,), daemon=True) for handler in handlers]
    for thread in threads:
        thread.start()
    pipe.send("ready")
    pipe.recv()
    before = time.process_time()
    go.set()
    for thread in threads:
        thread.join()
    pipe.send((joined, time.process_time() - before))


def main() -> None:
    """Serve, join, and print what it took."""
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--nodes", type=int, default=4000)
    flags.add_argument("--processes", type=int, default=2)
    asked = flags.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "edriver", "rendezvous", "--port", "0", "--address", "127.0.0.1"]
        server = subprocess.Popen([*command, "--folder", folder], stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None
        server.stdout.readline()
        try:
            before = processor_seconds(server.pid)
            measure(asked.nodes, asked.processes, str(Path(folder, CREDENTIALS_FILE)))
            print(f"of the server: {processor_seconds(server.pid) - before:.1f} s")
        finally:
            server.terminate()
            server.wait()


def measure(nodes: int, processes: int, credentials: str) -> None:
    """Have all join at once."""
    spawn = multiprocessing.get_context("spawn")
    pipes, children = [], []
    for number in range(processes):
        here, there = spawn.Pipe()
        child = spawn.Process(target=join_all, args=(number, nodes // processes, nodes, credentials, there))
        child.start()
        pipes.append(here)
        children.append(child)
    for pipe in pipes:
        pipe.recv()
    began = time.time()
    for pipe in pipes:
        pipe.send("go")
    answers = [pipe.recv() for pipe in pipes]
    for child in children:
        child.join()
    ends = [end for joined, _ in answers for end, _ in joined]
    ranks = sorted(rank for joined, _ in answers for _, rank in joined)
    assert ranks == list(range(nodes)), "each node has a rank of its own"
    print(f"{nodes} nodes in {processes} processes joined in {max(ends) - began:.2f} s", end="")
    print(f" (the first after {min(ends) - began:.2f} s); load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    print(f"processor time of the nodes: {', '.join(f'{cpu:.1f} s' for _, cpu in answers)}")


if __name__ == "__main__":
    main()
