"""A thread that the interpreter waits for at its end is named once, with its stack."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from edriver.worker.watch.lingering import EndWatch

go = threading.Event()
clock = iter(range(1000)).__next__
watch = EndWatch(threading.main_thread(), clock)
assert watch.look() is None, "the script has not ended"

def look_again():
    while not watch._script_has_ended():
        time.sleep(0.001)
    said = [watch.look() for _ in range(8)]
    print([text is not None for text in said])
    print("".join(filter(None, said)), flush=True)
    go.set()

threading.Thread(target=look_again, daemon=True).start()
{leave}
"""


@pytest.mark.parametrize(
    ("leave", "name"),
    [
        pytest.param('threading.Thread(target=go.wait, name="uploader").start()', "uploader", id="thread"),
        pytest.param('ThreadPoolExecutor(1, "pool").submit(go.wait)', "pool_0", id="pool"),
    ],
)
def test_threads_that_keep_the_process_alive_are_named(leave: str, name: str) -> None:
    found = subprocess.run(
        [sys.executable, "-c", SCRIPT.replace("{leave}", leave)], capture_output=True, text=True, timeout=30, check=True
    )
    looks, first, second, *_ = found.stdout.splitlines()
    assert looks == str([False] * 4 + [True] + [False] * 3)
    assert first == f"the script has ended, and this process waits for its thread {name}, which is not a daemon"
    assert second == f"thread {name}:"
