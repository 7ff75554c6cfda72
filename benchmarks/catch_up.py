"""How long a replica that joins holds up the others, by the way its state travels: `python -m benchmarks.catch_up`.

One process holds parameters and Adam's moments and trains; another one joins. The state travels by the product's own
sync: at a boundary, as edriver does it; or in part, or all of it, while the next step's gradients are computed; or as a
copy that is sent beside training, with each step's gradients after it, from which the newcomer makes the same steps.
Afterwards both must have equal bits. `benchmarks/catch_up_ways.py` has the ways and a formula of each one's pause.

Over loopback (rate 0), or from host to host in network namespaces whose links `tc` limits, which takes root and
iproute2. Prints one JSON object for each combination: seconds, bytes a second, and the load of the last minute.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from torch.multiprocessing.spawn import spawn

from benchmarks.catch_up_job import Step, Trial, rank_main
from benchmarks.catch_up_ways import GRADIENT_BYTES, STATE_BYTES, WAYS, Speeds, expected_pause
from edriver.agent.workers.worker_environment import MALLOC_DEFAULTS
from tests.linked_hosts import INTERFACE, LinkedHost, linked_hosts
from tests.session_guard import guard_this_session


def main() -> None:
    """Measure each combination and print it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.catch_up")
    parser.add_argument("--quick", action="store_true", help="a tiny model over loopback")
    parser.add_argument("--parameters", type=float, nargs="+", default=[3, 25, 100], help="in millions")
    parser.add_argument("--rates", type=float, nargs="+", default=[0, 0.1, 0.5, 1.25], help="of links, in GB/s")
    parser.add_argument("--waits", type=float, nargs="*", default=[0.05, 0.5], help="seconds a step waits")
    parser.add_argument("--computes", type=float, nargs="*", default=[0.5], help="seconds a step computes")
    parser.add_argument("--holders", type=int, default=1, help="ranks that train before one joins")
    parser.add_argument("--reduces", action="store_true", help="gradients are reduced over the same links")
    parser.add_argument(
        "--new-memory", action="store_true", help="what arrives goes into memory that was not written to before"
    )
    parser.add_argument("--ways", nargs="+", choices=[way.name for way in WAYS], default=[way.name for way in WAYS])
    parser.add_argument("--repeats", type=int, default=1)
    args = parser.parse_args()
    if args.quick:
        args.parameters, args.rates, args.waits, args.computes = [1.5], [0], [0.02], []
    steps = [Step(seconds, reduces=args.reduces) for seconds in args.waits]
    steps += [Step(seconds, computes=True, reduces=args.reduces) for seconds in args.computes]
    ways = tuple(way for way in WAYS if way.name in args.ways)
    os.environ |= MALLOC_DEFAULTS  # which a process reads when it begins
    guard_this_session()
    for rate in args.rates:
        with _network(args.holders + 1, rate * 1e9) as hosts:
            for millions in args.parameters:
                each = tuple(steps) * args.repeats
                trial = Trial(round(millions * 1e6), args.holders, each, ways, hosts, touched=not args.new_memory)
                for figures in _figures(_measured(trial), trial.parameters, rate):
                    print(json.dumps(figures), flush=True)


@contextlib.contextmanager
def _network(count: int, rate: float) -> Iterator[tuple[LinkedHost, ...]]:
    """So many hosts, each of which sends that many bytes a second at most; 0: none, for all ranks are on this one."""
    if not rate:
        yield ()
        return
    with linked_hosts(count) as hosts:
        for host in hosts:
            subprocess.run(
                [
                    *("tc", "-n", host.namespace, "qdisc", "add", "dev", INTERFACE, "root", "tbf"),
                    *("rate", f"{rate * 8:.0f}bit", "burst", f"{max(256_000, rate / 1000):.0f}", "latency", "20ms"),
                ],
                check=True,
                timeout=60,
            )
        yield tuple(hosts)


def _measured(trial: Trial) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        spawn(rank_main, (trial, folder), nprocs=trial.holders + 1)  # type: ignore[no-untyped-call]
        return [json.loads(line) for line in (Path(folder) / "result").read_text().splitlines()]


def _figures(all_found: list[dict[str, Any]], parameters: int, rate: float) -> Iterator[dict[str, Any]]:
    """What was measured, and what the formula says with the speeds that were measured beside."""
    state = STATE_BYTES * parameters

    def speed(amount: float, name: str) -> float:
        """Of what some of the ways have taken time for; infinite: those were not tried."""
        seconds = [found[name] for found in all_found if found[name]]
        return amount / median(seconds) if seconds else math.inf

    speeds = Speeds(all_found[0]["link"], speed(state, "copy_s"), speed(state, "load_s"), speed(parameters, "replay_s"))
    for found in all_found:
        way = next(way for way in WAYS if way.name == found["way"])
        expected = expected_pause(way, parameters, found["measured_step"], found["seconds"], speeds)
        sent = state * (1 + found["gave_up"]) + GRADIENT_BYTES * parameters * found["gradients_sent"]
        yield {"parameters": parameters, "rate": rate * 1e9, **found, "expected_pause": expected, "bytes_sent": sent}


if __name__ == "__main__":
    main()
