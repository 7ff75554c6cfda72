"""A run of benchmarks/gpu/job.py under edriver, with four workers on two hosts, and what has to be true of its end."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from benchmarks.gpu.job import PLACES, SIZE
from benchmarks.jobs import HarnessError, Workload
from benchmarks.under_edriver import EdriverJob


class TroubledJob(EdriverJob):
    """The churn workload with trouble at one place."""

    script = "benchmarks.gpu.job"


class HorovodJob(TroubledJob):
    """The same, in a script for Horovod."""

    script = "benchmarks.gpu.horovod_job"


def troubled(workload: Workload, place: str, flavour: str, say: Callable[[str], None], bound: float) -> dict[str, Any]:
    """Run it to its end.

    Args:
        workload: what to train, and where it lies.
        place: of the trouble.
        flavour: how it trains; "horovod": the script for Horovod.
        say: takes the run's output, if it failed.
        bound: seconds that it may take.

    Returns:
        Figures by name; `failed`, a sentence, where something is not as it has to be.
    """
    assert place in PLACES
    job_class = HorovodJob if flavour == "horovod" else TroubledJob
    with job_class(workload, environ={"TROUBLE": place, "FLAVOUR": flavour}) as job:
        try:
            job.launch(SIZE)
            job.wait_until(lambda _: job.ended, bound, "the run's end")
            return _judged(job, place)
        except HarnessError as error:
            return _failed(job, place, flavour, error.what, say)
        except AssertionError as error:
            return _failed(job, place, flavour, str(error), say)


def _judged(job: TroubledJob, place: str) -> dict[str, Any]:
    code = job.wait()
    assert code == 0, f"exit code {code}"
    results = [json.loads(path.read_text()) for path in sorted(job.folder.glob("result-*.json"))]
    assert len(results) == SIZE, f"{len(results)} of {SIZE} workers came to the end"
    assert len({one["step"] for one in results}) == 1, results
    assert len({one["digest"] for one in results}) == 1, "the members ended with different states"
    rounds = job.history.rounds
    assert (job.folder / "fired").exists() == (place != "none"), "the trouble did not come"
    pauses = [one.first_step for one in rounds]
    frees = {one["pid"]: one["free at its start"] for one in results}
    return {
        "rounds": len(rounds),
        "began at steps": pauses,
        "longest pause": job.history.longest_pause(job.launched),
        "steps lost": job.history.steps_lost(),
        "least memory free at a start": min(frees.values()),
    }


def _failed(job: TroubledJob, place: str, flavour: str, what: str, say: Callable[[str], None]) -> dict[str, Any]:
    output = (job.folder / "output-0.txt").read_text(errors="replace")
    say(f"-- {place}, {flavour}: {what} ({time.monotonic() - job.launched:.0f} s)\n{output[-40_000:]}")
    job.keep()
    return {"failed": what, "rounds": [(one.number, one.size, one.first_step, one.last_step) for one in job.look()]}
