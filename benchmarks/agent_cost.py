"""What an agent costs, with what it samples and forwards: `python -m benchmarks.agent_cost`.

Eight workers on this machine train, each with two data loaders; each prints ten lines a second. After them a single one
does the same. Prints one JSON object:

- agent_core: the part of a core that the agent's process needs, over a minute.
- driver_core: the same of the driver's.
- sample_ms: processor time of one sample of these workers, as the agent takes it every 2 s; the median of 30.
- sample_core: that, as a part of a core.
- processes: what is sampled.
- agent_mib: the agent's resident memory.
- agent_core_at_10_lines: agent_core with the single worker: ten lines a second in all.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.processes import usage_of
from edriver.agent.resources.sample import WorkerPlace
from edriver.agent.resources.sampler import Sampler
from edriver.agent.resources.sampling import SAMPLE_PERIOD
from edriver.client import Client, here
from tests.process.running import SCRIPTS, running

WORKERS, LOADERS, PAUSE = 8, 2, 0.1
SECONDS = 60.0
SAMPLES = 30
AGENT = "edriver.agent.main"


def agent_of(driver: int) -> int:
    """The process of the driver's agent."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                command = (entry / "cmdline").read_bytes().decode(errors="replace")
            except OSError:  # it has ended meanwhile
                continue
            if parent == driver and AGENT in command:
                return int(entry.name)
    raise AssertionError("the run has no agent")


class Cost(NamedTuple):
    """What a run has taken, as parts of a core, and its agent's resident memory in bytes."""

    agent: float
    driver: float
    memory: int


@contextmanager
def measured(workers: int) -> Iterator[tuple[Cost, list[WorkerPlace]]]:
    """A run with so many workers that has been measured, and goes on; and where its workers are."""
    environ = {"STEPS": "1000000", "PAUSE": str(PAUSE), "LOADERS": str(LOADERS), "PRINT_EVERY": "1"}
    with tempfile.TemporaryDirectory(prefix="ed-") as place:
        os.environ["XDG_STATE_HOME"] = place
        command = [sys.executable, str(SCRIPTS / "train.py")]
        with running(["-np", str(workers), *command], Path(place), environ) as run:
            for rank in range(workers):
                run.line(f"rank {rank} passed step 20")
            with Client(here(run.id)) as client:
                places = [WorkerPlace(worker.worker_id, worker.pid) for worker in client.status().workers]
            agent, driver = agent_of(run.process.pid), run.process.pid
            before, began = [usage_of(pid) for pid in (agent, driver)], time.monotonic()
            time.sleep(SECONDS)
            after, elapsed = [usage_of(pid) for pid in (agent, driver)], time.monotonic() - began
            of_agent, of_driver = [
                (last.seconds - first.seconds) / elapsed for first, last in zip(before, after, strict=True)
            ]
            yield Cost(of_agent, of_driver, after[0].memory), places


def main() -> None:
    """Run, and measure."""
    with measured(WORKERS) as (cost, workers):
        sampler, costs, processes = Sampler(), [], 0
        for _ in range(SAMPLES):
            spent = time.thread_time()
            sample = sampler.sample(workers)
            costs.append(time.thread_time() - spent)
            processes = sum(usage.processes for usage in sample.workers.values())
            time.sleep(SAMPLE_PERIOD / 4)
    with measured(1) as (single, _):
        pass
    found = {
        "agent_core": round(cost.agent, 4),
        "driver_core": round(cost.driver, 4),
        "sample_ms": round(1000 * median(costs), 2),
        "sample_core": round(median(costs) / SAMPLE_PERIOD, 4),
        "processes": processes,
        "agent_mib": round(cost.memory / 2**20, 1),
        "agent_core_at_10_lines": round(single.agent, 4),
    }
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
