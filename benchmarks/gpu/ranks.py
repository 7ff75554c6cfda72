"""What NCCL and torch do with a lost peer, without edriver: four ranks on one GPU.

    python -m benchmarks.gpu.ranks        prints one JSON object: what was found, by case

Each case kills one rank at one place, and aborts the others' communicators from another thread, as edriver does:

 - reduce: before an all-reduce in which all others are; nothing, but a kernel on the device, waits for it.
 - build: before it has joined a communicator that the others are building.
 - build, nonblocking: the same with TORCH_NCCL_USE_COMM_NONBLOCKING=1.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import FileStore  # type: ignore[attr-defined]  # torch/distributed/__init__.py has it

from benchmarks.workload import share_the_gpu
from edriver.agent.workers.worker_environment import NCCL_DEFAULTS

SIZE = 4
VICTIM = 2
BOUND = 30.0
ABORT_BOUND = 6.0
CASES = {
    "reduce": {},
    "reduce again": {},
    "reduce once more": {},
    "build": {},
    "build, nonblocking": {"TORCH_NCCL_USE_COMM_NONBLOCKING": "1"},
}


def main() -> None:
    """Run all cases, beside one another; with arguments: be one rank."""
    if sys.argv[1:]:
        case, rank, folder = sys.argv[1:]
        _rank(case, int(rank), Path(folder))
        return
    with ThreadPoolExecutor() as pool:
        runs = {case: pool.submit(_run, case, variables) for case, variables in CASES.items()}
    sys.stdout.write(json.dumps({case: run.result() for case, run in runs.items()}))


def _run(case: str, variables: dict[str, str]) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = {**os.environ, **NCCL_DEFAULTS, **variables, "GLOO_SOCKET_IFNAME": "lo"}
        ranks = [
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.gpu.ranks", case, str(rank), name],
                env=environment,
                stderr=(folder / f"stderr-{rank}").open("w"),
            )
            for rank in range(SIZE)
        ]
        deadline = time.monotonic() + BOUND
        found = []
        for rank, process in enumerate(ranks):
            try:
                process.wait(max(deadline - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            result = folder / f"result-{rank}"
            text = (folder / f"stderr-{rank}").read_text()
            note = {"rank": rank, "exit code": process.returncode}
            note |= json.loads(result.read_text()) if result.exists() else {"stderr": text[-1500:]}
            found.append(note)
        return found


def _rank(case: str, rank: int, folder: Path) -> None:
    share_the_gpu()
    notes: dict[str, Any] = {}
    one_writes = threading.Lock()

    def note(name: str, value: Any) -> None:
        with one_writes:  # the thread that aborts notes things, too
            notes[name] = value
            unfinished = folder / f"unfinished-{rank}"
            unfinished.write_text(json.dumps(notes))
            unfinished.replace(folder / f"result-{rank}")

    store = FileStore(str(folder / "store"), SIZE)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl", store=store, rank=rank, world_size=SIZE, timeout=timedelta(seconds=BOUND)
    )
    ones = torch.ones(1 << 20, device="cuda")
    began = time.monotonic()
    dist.all_reduce(ones)
    torch.cuda.synchronize()
    note("first all-reduce, seconds", round(time.monotonic() - began, 3))
    note("sum", float(ones[0]))
    began = time.monotonic()
    for _ in range(10):
        dist.all_reduce(ones)
    torch.cuda.synchronize()
    note("all-reduce of 4 MiB, seconds", round((time.monotonic() - began) / 10, 4))
    group = dist.new_group() if case.startswith("build") else dist.GroupMember.WORLD
    dist.barrier(group=dist.new_group(backend="gloo"))
    if rank == VICTIM:
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()

    def since() -> float:
        return round(time.monotonic() - began, 3)

    threading.Thread(target=_abort_later, args=(group, note, since), daemon=True).start()
    try:
        dist.all_reduce(ones, group=group)
        note("collective returned after", since())
        torch.cuda.synchronize()
        note("device was free after", since())
        dist.all_reduce(ones, group=group)
        torch.cuda.synchronize()
        note("a second collective raised", "nothing")
    except Exception as error:  # noqa: BLE001  whatever it is, it is what is looked for
        note("raised", f"{type(error).__name__}: {str(error)[:300]}")
        note("raised after", since())
    note("ended", "yes")
    os._exit(0)


def _abort_later(group: Any, note: Callable[[str, Any], None], since: Callable[[], float]) -> None:
    time.sleep(1.0)  # what is measured: the others are in the collective by then
    communicator = group._get_backend(torch.device("cuda"))
    done = threading.Event()
    note("name of the backend", communicator.name())

    def abort() -> None:
        communicator.abort()
        done.set()

    threading.Thread(target=abort, daemon=True).start()
    note("abort began after", since())
    note("abort returned", since() if done.wait(ABORT_BOUND) else f"not within {ABORT_BOUND:g} s")


if __name__ == "__main__":
    main()
