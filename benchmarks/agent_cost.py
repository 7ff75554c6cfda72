"""What an agent costs, with what it samples and forwards: `python -m benchmarks.agent_cost`.

Eight workers on this machine train, each with two data loaders; each prints ten lines a second. Prints one JSON object:

- agent_core: the part of a core that the agent's process needs, over a minute.
- driver_core: the same of the driver's.
- sample_ms: processor time of one sample of these workers, as the agent takes it every 2 s; the median of 30.
- sample_core: that, as a part of a core.
- processes: what is sampled.
- agent_mib: the agent's resident memory.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

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


def main() -> None:
    """Run, and measure."""
    environ = {"STEPS": "1000000", "PAUSE": str(PAUSE), "LOADERS": str(LOADERS), "PRINT_EVERY": "1"}
    with tempfile.TemporaryDirectory(prefix="ed-") as place:
        os.environ["XDG_STATE_HOME"] = place
        command = [sys.executable, str(SCRIPTS / "train.py")]
        with running(["-np", str(WORKERS), *command], Path(place), environ) as run:
            for rank in range(WORKERS):
                run.line(f"rank {rank} passed step 20")
            with Client(here(run.id)) as client:
                workers = [WorkerPlace(worker.worker_id, worker.pid) for worker in client.status().workers]
            agent, driver = agent_of(run.process.pid), run.process.pid
            before, began = [usage_of(pid) for pid in (agent, driver)], time.monotonic()
            time.sleep(SECONDS)
            after, elapsed = [usage_of(pid) for pid in (agent, driver)], time.monotonic() - began
            sampler, costs, processes = Sampler(), [], 0
            for _ in range(SAMPLES):
                spent = time.thread_time()
                sample = sampler.sample(workers)
                costs.append(time.thread_time() - spent)
                processes = sum(usage.processes for usage in sample.workers.values())
                time.sleep(SAMPLE_PERIOD / 4)
    agent_core, driver_core = [
        (last.seconds - first.seconds) / elapsed for first, last in zip(before, after, strict=True)
    ]
    found = {
        "agent_core": round(agent_core, 4),
        "driver_core": round(driver_core, 4),
        "sample_ms": round(1000 * median(costs), 2),
        "sample_core": round(median(costs) / SAMPLE_PERIOD, 4),
        "processes": processes,
        "agent_mib": round(after[0].memory / 2**20, 1),
    }
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
