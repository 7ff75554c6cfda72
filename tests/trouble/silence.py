"""How long a run of four stands still when one of its hosts, agents or workers goes silent without dying.

    python -m tests.trouble.silence [--repeats 5]

Four hosts of one worker each, network namespaces with a real sshd. A lease is 5 s. Prints one JSON object: medians and
the most, in seconds, of what the driver took to give the silent one up, and of what came after that, up to the next
step that all who are left have finished.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median

from benchmarks.jobs import Workload, end_well_on_sigterm
from benchmarks.phases import read_event_log
from benchmarks.under_edriver import EdriverJob
from tests.linked_hosts import LinkedHost, linked_hosts
from tests.ssh_hosts import ssh_hosts
from tests.trouble.runner import agents_on

WORKERS = 4
WARM_STEPS = 45
BOUND = 60.0

Silence = Callable[[LinkedHost, int], None]


def _stop_worker(_: LinkedHost, worker: int) -> None:
    os.kill(worker, signal.SIGSTOP)


def _stop_agent(host: LinkedHost, _: int) -> None:
    for pid in agents_on([host]):
        os.kill(pid, signal.SIGSTOP)


def _cut(host: LinkedHost, _: int) -> None:
    host.cut()


SILENCES: Mapping[str, Silence] = {"worker stopped": _stop_worker, "agent stopped": _stop_agent, "cable cut": _cut}


def main() -> None:
    """Measure each kind of silence so many times, in turns."""
    parser = argparse.ArgumentParser(prog="python -m tests.trouble.silence")
    parser.add_argument("--repeats", type=int, default=5, help="(default: %(default)s)")
    repeats = parser.parse_args().repeats
    end_well_on_sigterm()
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in SILENCES}
    for _ in range(repeats):
        for name, silence in SILENCES.items():
            found[name].append(_measure(silence))
    print(json.dumps({name: _summary(times) for name, times in found.items()}, indent=1))


def _measure(silence: Silence) -> tuple[float, float]:
    """Seconds from the silence to when it was noticed, and from then to the next finished step."""
    with contextlib.ExitStack() as made:
        there = made.enter_context(linked_hosts(1 + WORKERS))
        folder = Path(made.enter_context(tempfile.TemporaryDirectory(prefix="edriver-silence-")))
        ssh = made.enter_context(ssh_hosts(there[1:], folder))
        through = ["ip", "netns", "exec", there[0].namespace]
        job = made.enter_context(EdriverJob(Workload(), through, {"PATH": ssh.path}))
        hosts = {f"host{number}": host for number, host in enumerate(there[1:], start=1)}
        job.start(dict.fromkeys(hosts, 1), np=WORKERS, min_np=1, max_np=WORKERS)
        job.wait_for_steps(size=WORKERS, steps=WARM_STEPS)
        victim = job.look()[-1].starts[2]
        now, wall = time.monotonic(), time.time()
        silence(hosts[victim.host], victim.pid)

        def resumed() -> float | None:
            return job.history.first_completion(now, WORKERS - 1)

        job.wait_until(lambda _: resumed() is not None, BOUND, "a step without the silent one")
        step = resumed()
        assert step is not None

        def given_up() -> float | None:
            return next((r.ended for r in read_event_log(job.event_log) if r.ended and r.ended > wall), None)

        job.wait_until(lambda _: given_up() is not None, BOUND, "the event log's line of it")
        ended = given_up()
        assert ended is not None
        return ended - wall, (step - now) - (ended - wall)


def _summary(times: list[tuple[float, float]]) -> dict[str, dict[str, float]]:
    noticed, after = zip(*times, strict=True)
    return {
        "noticed after": {"median": round(median(noticed), 3), "most": round(max(noticed), 3)},
        "next step after that": {"median": round(median(after), 3), "most": round(max(after), 3)},
    }


if __name__ == "__main__":
    main()
