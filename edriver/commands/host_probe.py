"""What `edriver doctor` runs on another host, and the two ends of a connection that it tries. Needs Python alone.

Its source is sent there whole. It speaks in lines of JSON: first what the host is, then an answer to each question.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import socket
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

HELLO_BYTES = b"edriver\n"
DIAL_TIMEOUT = 3.0
"""Seconds that a connection between two hosts may take."""


def listen(address: str, port: int = 0) -> int:
    """Answer all connections, in a thread; returns the port.

    Args:
        address: at which; empty: all of this machine's.
        port: which; 0: any that is free.

    Raises:
        OSError: that port cannot be had.
    """
    family = socket.AF_INET6 if ":" in address or (not address and socket.has_dualstack_ipv6()) else socket.AF_INET
    dual = not address and family == socket.AF_INET6
    listener = socket.create_server((address, port), family=family, backlog=128, dualstack_ipv6=dual)

    def serve() -> None:
        while True:
            caller, _ = listener.accept()
            with caller:
                caller.sendall(HELLO_BYTES)

    threading.Thread(target=serve, daemon=True).start()
    return int(listener.getsockname()[1])


def dial(address: str, port: int) -> str:
    """Why a port where `listen` answers cannot be reached; empty: it can."""
    try:
        with socket.create_connection((address, port), DIAL_TIMEOUT) as connection:
            connection.settimeout(DIAL_TIMEOUT)
            return "" if connection.recv(len(HELLO_BYTES)) == HELLO_BYTES else "something else answers there"
    except OSError as error:
        return error.strerror or str(error)


def dial_all(places: Sequence[Sequence[object]]) -> list[str]:
    """The same for several places (address, port), side by side."""
    with ThreadPoolExecutor(max(1, min(64, len(places)))) as threads:
        return list(threads.map(lambda place: dial(str(place[0]), int(str(place[1]))), places))


def introduction() -> dict[str, object]:
    """This host: its versions, its limits, and the addresses of its ssh connection."""
    try:
        from edriver.common import release
    except ImportError:
        version = ""
    else:
        version = release.VERSION
    there = os.environ.get("SSH_CONNECTION", "").split()
    address = there[2] if len(there) == 4 else ""
    return {
        "python": platform.python_version(),
        "edriver": version,
        "descriptors": resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        "address": address,
        "caller": there[0] if there else "",
        "port": listen(address),
    }


def main() -> None:
    """Introduce this host, and answer questions until there are no more."""
    _say(introduction())
    for line in sys.stdin:
        question = json.loads(line)
        _say(dial_all(question["dial"]) if "dial" in question else time.time())


def _say(answer: object) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
