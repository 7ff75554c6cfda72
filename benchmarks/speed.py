"""SPEED: how fast two workers train under edriver, and in a bare process group."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.jobs import ROOT, HarnessError, free_port
from benchmarks.processes import MARK, kill_all

BOUND = 180.0
WORKERS = 2


def speed(system: str) -> dict[str, float]:
    """Run the script once, under "edriver" or "bare".

    Raises:
        HarnessError: it failed, or took too long.
    """
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "speed")
        mark = Path(folder).name
        job = [sys.executable, "-m", "benchmarks.speed_job", str(result)]
        environ = {**os.environ, "PYTHONPATH": str(ROOT), MARK: mark}
        if system == "edriver":
            commands = [([sys.executable, "-m", "edriver", "-np", str(WORKERS), *job], environ)]
        else:
            group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(WORKERS)}
            group |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
            commands = [(job, {**environ, **group, "RANK": str(rank)}) for rank in range(WORKERS)]
        try:
            processes = [
                subprocess.Popen(
                    command, env=env, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=sys.stderr
                )
                for command, env in commands
            ]
            codes = [process.wait(BOUND) for process in processes]
        except subprocess.TimeoutExpired:
            raise HarnessError(f"{system}: not trained within {BOUND:g} s", Path(folder)) from None
        finally:
            kill_all(mark)
        if any(codes):
            raise HarnessError(f"{system}: ended with {codes}", Path(folder))
        return {"steps a second": float(result.read_text())}
