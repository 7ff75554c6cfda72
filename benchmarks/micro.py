"""The micro benchmarks: modules that run in a process of their own and print one JSON object, figures by name."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from dataclasses import dataclass

from benchmarks.jobs import ROOT

BOUND = 300.0


@dataclass(frozen=True, slots=True)
class Micro:
    """One of them.

    Attributes:
        part: what it measures, as on the command line.
        module: what is run.
        seconds: how long it takes, roughly.
        arguments: of its command line.
    """

    part: str
    module: str
    seconds: float
    arguments: tuple[str, ...] = ()


MICROS = (
    Micro("BOUNDARY", "benchmarks.boundary_speed", 8),
    Micro("COMMIT", "benchmarks.commit_speed", 20),
    Micro("REBUILD", "benchmarks.rebuild_speed", 15),
    Micro("SYNC", "benchmarks.sync_speed", 30),
    Micro("SAMPLER", "benchmarks.sampler_speed", 20),
)


def present() -> list[Micro]:
    """Those that are there."""
    return [micro for micro in MICROS if importlib.util.find_spec(micro.module)]


def measured(micro: Micro) -> dict[str, float]:
    """Run one.

    Raises:
        subprocess.SubprocessError: it failed.
    """
    command = [sys.executable, "-m", micro.module, *micro.arguments]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, timeout=BOUND, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    return {name: float(value) for name, value in found.items() if isinstance(value, int | float)}
