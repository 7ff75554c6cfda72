"""SPEED: how fast two workers train under edriver, and in a bare process group."""

from __future__ import annotations

import os
import shutil
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
    folder = Path(tempfile.mkdtemp(prefix="speed-"))
    result = folder / "speed"
    try:
        with (folder / "output.txt").open("wb") as output:
            processes = [
                subprocess.Popen(
                    command,
                    env={**os.environ, "PYTHONPATH": str(ROOT), MARK: folder.name, **settings},
                    cwd=folder,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                )
                for command, settings in _commands(system, result)
            ]
        codes = [process.wait(BOUND) for process in processes]
    except subprocess.TimeoutExpired:
        raise HarnessError(f"not trained within {BOUND:g} s", folder) from None
    finally:
        kill_all(folder.name)
    if any(codes):
        raise HarnessError(f"ended with {codes}", folder)
    found = float(result.read_text())
    shutil.rmtree(folder)
    return {"steps a second": found}


def _commands(system: str, result: Path) -> list[tuple[list[str], dict[str, str]]]:
    """What to start, and with what in its environment."""
    job = [sys.executable, "-m", "benchmarks.speed_job", str(result)]
    if system == "edriver":
        return [([sys.executable, "-m", "edriver", "-np", str(WORKERS), *job], {})]
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(WORKERS)}
    group |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return [(job, {**group, "RANK": str(rank)}) for rank in range(WORKERS)]
