"""The bare floor's parent: `python -m benchmarks.bare_parent SIZE ...`, with the workload's flags behind it.

It starts that many processes that train with torch alone, reaps one that dies, and tells the others their new places
through plain sockets. There is nothing else to it: no discovery, no lease, no state to agree on, no replacement. So it
shows what recovery costs on this machine at the least.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
from dataclasses import dataclass


@dataclass(slots=True)
class Child:
    """One process that trains.

    Attributes:
        process: the process.
        talk: our end of the socket.
        store: the port at which its store listens.
    """

    process: subprocess.Popen[bytes]
    talk: socket.socket
    store: int = 0


def start(flags: list[str]) -> Child:
    """Start one process that trains."""
    ours, theirs = socket.socketpair()
    settings = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    with theirs:
        number = theirs.fileno()
        command = [sys.executable, "-m", "benchmarks.bare_job", *flags]
        environ = {**os.environ, **settings, "BARE_SOCKET": str(number)}
        process = subprocess.Popen(command, pass_fds=[number], env=environ, start_new_session=True)
    return Child(process, ours)


def place(children: list[Child], number: int) -> None:
    """Send all of them their places in the next round; the first one's store serves it."""
    for rank, child in enumerate(children):
        message = {"round": number, "rank": rank, "size": len(children), "store": children[0].store}
        child.talk.sendall(f"{json.dumps(message)}\n".encode())


def main() -> int:
    """Run until all have ended by themselves; returns 0 if they ended well."""
    size, flags = int(sys.argv[1]), sys.argv[2:]
    children = [start(flags) for _ in range(size)]
    for child in children:
        child.store = int(child.talk.makefile("r").readline())
    number = 1
    place(children, number)
    watch = select.poll()
    by_descriptor = {os.pidfd_open(child.process.pid): child for child in children}
    for descriptor in by_descriptor:
        watch.register(descriptor, select.POLLIN)
    failed = 0
    while by_descriptor:
        for descriptor, _ in watch.poll():
            child = by_descriptor.pop(descriptor)
            watch.unregister(descriptor)
            children.remove(child)
            code = child.process.wait()
            if code < 0 and children:
                number += 1
                place(children, number)
            elif code:
                failed = code
    return failed


if __name__ == "__main__":
    sys.exit(main())
