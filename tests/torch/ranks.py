"""Runs a function of a test module in several processes that share a Gloo group over loopback.

A child is `python -m tests.torch.ranks MODULE FUNCTION RANK SIZE [all-live]`. Rank 0 chooses the
store's port and prints it; the others read it. A function returns something that JSON can hold.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Collection
from datetime import timedelta
from pathlib import Path
from typing import IO, Any

import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

ROOT = Path(__file__).resolve().parents[2]
LIMIT_SECONDS = 300.0
RESULT = "RESULT "


def run_ranks(function: Callable[[int], Any], size: int, dying: Collection[int] = ()) -> list[Any]:
    """Call `function(rank)` in `size` processes.

    Args:
        function: of a module below tests/, at its top level.
        size: how many.
        dying: ranks that kill themselves; all others must end well.

    Returns:
        What each rank returned; None for those that died.
    """
    children = [_start(function, rank, size, all_live=not dying) for rank in range(size)]
    # A child that hangs is killed, which ends every read below.
    alarm = threading.Timer(LIMIT_SECONDS, _kill, (children,))
    with contextlib.ExitStack() as stack:
        stack.callback(_end, children)
        alarm.start()
        stack.callback(alarm.cancel)
        port = _pipe(children[0].stdout).readline()
        for child in children[1:]:
            with contextlib.suppress(BrokenPipeError):
                _pipe(child.stdin).write(port)
                _pipe(child.stdin).flush()
        outputs = _gather(children)
    for rank, (child, (out, err)) in enumerate(zip(children, outputs, strict=True)):
        if rank not in dying:
            assert child.returncode == 0, f"rank {rank} ended with {child.returncode}:\n{out}\n{err}"
    return [_result(out) for out, _ in outputs]


def _start(function: Callable[[int], Any], rank: int, size: int, all_live: bool) -> subprocess.Popen[str]:
    where = (function.__module__, function.__name__, str(rank), str(size), "all-live" if all_live else "")
    return subprocess.Popen(
        [sys.executable, "-m", "tests.torch.ranks", *where],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _gather(children: list[subprocess.Popen[str]]) -> list[tuple[str, str]]:
    outputs = [("", "")] * len(children)

    def gather(rank: int) -> None:
        outputs[rank] = children[rank].communicate()

    threads = [threading.Thread(target=gather, args=(rank,)) for rank in range(len(children))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outputs


def _kill(children: list[subprocess.Popen[str]]) -> None:
    for child in children:
        child.kill()


def _end(children: list[subprocess.Popen[str]]) -> None:
    _kill(children)
    for child in children:
        child.wait()
        for pipe in (child.stdin, child.stdout, child.stderr):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


def _result(out: str) -> Any:
    lines = [line for line in out.splitlines() if line.startswith(RESULT)]
    return json.loads(lines[-1].removeprefix(RESULT)) if lines else None


def _main(module: str, name: str, rank: int, size: int, all_live: bool) -> None:
    function: Callable[[int], Any] = getattr(importlib.import_module(module), name)
    wait = timedelta(seconds=LIMIT_SECONDS / 2)
    if rank == 0:
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=wait)
        print(store.port, flush=True)
    else:
        store = TCPStore("127.0.0.1", int(sys.stdin.readline()), is_master=False, timeout=wait)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=wait)
    print(RESULT + json.dumps(function(rank)), flush=True)
    if all_live:  # one that left early would break the connections of the others
        dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5] == "all-live")
