"""The run's status as custom metrics of Ray, for its dashboard and its Prometheus. Runs in the bridge."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Final

from ray.util.metrics import Gauge

from edriver.client import AsyncClient, Run, RunError, here
from edriver.text.progress_text import knows_steps

INTERVAL: Final = 5.0
"""Seconds between two looks at the run."""


def values_of(run: Run) -> dict[str, float]:
    """What is shown of a run, by name."""
    shown: dict[str, float] = {
        "edriver_workers": run.size,
        "edriver_hosts": len(run.hosts),
        "edriver_rounds": run.rounds,
        "edriver_failures": run.failures,
        "edriver_preemptions": run.preemptions,
        "edriver_resizes": run.resizes,
    }
    if knows_steps(run.time_spent):
        shown |= {"edriver_steps": run.progress.steps, "edriver_steps_lost": run.steps_lost}
    if run.time_spent.HasField("goodput"):
        shown["edriver_goodput"] = run.time_spent.goodput
    return shown


async def show(run_id: str) -> None:
    """Show a run of this machine until it has ended."""
    tags = {"run": run_id, "page": f"`edriver dashboard` on {socket.gethostname()}"}
    gauges: dict[str, Gauge] = {}
    with contextlib.suppress(RunError):
        async with AsyncClient(here(run_id)) as client:
            while True:
                for name, value in values_of(await client.status()).items():
                    if name not in gauges:
                        gauges[name] = Gauge(name, f"of a run of edriver: {name[8:]}", tag_keys=tuple(tags))
                        gauges[name].set_default_tags(tags)
                    gauges[name].set(value)
                await asyncio.sleep(INTERVAL)
