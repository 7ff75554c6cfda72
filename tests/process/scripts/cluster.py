"""A script of TensorFlow's, as far as its cluster goes: it serves at its own address, and calls at all others."""

from __future__ import annotations

import importlib
import json
import os
import socket
import time
from pathlib import Path

tensorflow = importlib.import_module("tensorflow")  # one that the test has made

CONFIG = json.loads(os.environ["TF_CONFIG"])
WORKERS = [(host, int(port)) for host, _, port in (text.rpartition(":") for text in CONFIG["cluster"]["worker"])]
INDEX = CONFIG["task"]["index"]


def reached(address: tuple[str, int]) -> bool:
    """Whether something listens there, within 60 s."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            socket.create_connection(address, timeout=5).close()
        except ConnectionRefusedError:
            time.sleep(0.05)
        else:
            return True
    return False


assert os.environ["TF_CONFIG"] == tensorflow.CONFIG, "it was there when the package was imported"
assert (CONFIG["task"]["type"], str(INDEX)) == ("worker", os.environ["RANK"])
server = socket.socket()
server.bind(WORKERS[INDEX])
server.listen()
assert all(reached(address) for address in WORKERS)
print(f"rank {INDEX} of {len(WORKERS)} pid {os.getpid()} reaches {WORKERS}", flush=True)
while not Path("stop").exists():
    time.sleep(0.05)
