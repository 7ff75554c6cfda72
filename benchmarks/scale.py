"""What the core, and a whole driver, cost at a size: `make scale`.

`python -m benchmarks.scale run --hosts 10 100 1000`: a driver with simulated agents, see scale_run.py. Prints one JSON
object a size, then how each time grows from the smallest size to the largest, by host.

`python -m benchmarks.scale store --members 64 256 1024`: the store in which a round's members meet, see scale_store.py.
`python -m benchmarks.scale sync --receivers 1 8 63`: see scale_sync.py.
`python -m benchmarks.scale groups --workers 4 8 16 32`: see scale_groups.py.

`python -m benchmarks.scale core --hosts 10 100 1000`: the core alone. Hosts of eight slots each form a round, lose a
host, and form the next; the core is fed one event at a time, as the driver feeds it, and asked for its next deadline
after each. No process, no message, no file takes part, and no garbage collection. Prints one JSON object a size, in
which form_s and lost_host_s are processor time, then how the mean cost of an event grows from the smallest size to the
largest: 1.0 where it does not depend on the size.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

from benchmarks import scale_groups, scale_run, scale_store, scale_sync
from benchmarks.jobs import end_well_on_sigterm
from edriver.driver.core.membership import Membership
from edriver.model import actions, events
from edriver.model.cause import AgentFault, AgentFaultKind
from edriver.model.hosts import Host, HostSet
from edriver.model.ids import NO_VERSION, Version
from edriver.model.plan import RoundPlan
from edriver.model.settings import Settings
from edriver.model.store_address import StoreAddress

SLOTS = 8
"""Slots of each host."""

STEP = 0.001
"""Seconds of the core's clock from one event to the next."""


@dataclass(slots=True)
class Costs:
    """What single events have taken, in seconds."""

    by_kind: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    without_plan: list[float] = field(default_factory=list)

    def note(self, event: events.Event, ordered: Iterable[actions.Action], seconds: float) -> None:
        """An event has been taken in."""
        self.by_kind[type(event).__name__].append(seconds)
        if not any(isinstance(action, RoundPlan) for action in ordered):
            self.without_plan.append(seconds)

    @property
    def all(self) -> list[float]:
        """Those of all events."""
        return [cost for costs in self.by_kind.values() for cost in costs]


class CoreRun:
    """A run of hosts that do as they are told at once.

    Args:
        hosts: how many there are.
        clock: seconds, monotonic.

    Attributes:
        costs: what its events have cost.
    """

    def __init__(self, hosts: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self._hosts = [f"host-{number}" for number in range(hosts)]
        size = hosts * SLOTS
        self._core = Membership(Settings(np=size, min_np=1, max_np=size), now=0.0)
        self._clock = clock
        self._now = 0.0
        self._plan: RoundPlan | None = None
        self._agents: dict[str, int] = {}
        self._workers: dict[int, str] = {}
        self.costs = Costs()

    def form(self) -> None:
        """From discovery's first answer until every worker is a member and has made its first step."""
        self._feed(events.HostsObserved(HostSet(tuple(Host(name, SLOTS) for name in self._hosts))))
        for host, agent_id in list(self._agents.items()):
            self._feed(events.AgentConnected(host, agent_id))
        for worker_id in list(self._workers):
            self._feed(self._waiting(worker_id, NO_VERSION))
        self._step_once()

    def lose_host(self) -> None:
        """From the loss of an agent to the plan of the next round, through the report of every survivor."""
        before, lost = self._round, self._hosts[len(self._hosts) // 2]
        self._feed(events.AgentLost(lost, self._agents[lost], AgentFault(AgentFaultKind.ENDED, "exited")))
        for worker_id in before.workers:
            if self._workers[worker_id] != lost:
                self._feed(self._waiting(worker_id, Version(before.round_id, 1)))
        assert self._round is not before, "the survivors have a new round"

    def _step_once(self) -> None:
        current = self._round
        for worker_id in current.workers:
            self._feed(events.FirstBoundaryPassed(worker_id, current.round_id, {}))

    @property
    def _round(self) -> RoundPlan:
        assert self._plan is not None, "a round has been formed"
        return self._plan

    @staticmethod
    def _waiting(worker_id: int, version: Version) -> events.WorkerWaiting:
        return events.WorkerWaiting(worker_id, 1, version, StoreAddress("host", 1), "")

    def _feed(self, event: events.Event) -> None:
        self._now += STEP
        begun = self._clock()
        ordered = self._core.step(event, self._now)
        _ = self._core.next_deadline
        self.costs.note(event, ordered, self._clock() - begun)
        for action in ordered:
            match action:
                case actions.StartAgent(host, agent_id):
                    self._agents[host] = agent_id
                case actions.StartWorker(worker_id, host, _):
                    self._workers[worker_id] = host
                case RoundPlan():
                    self._plan = action


def measured(hosts: int) -> dict[str, Any]:
    """The costs at one size, as one line of the output has them."""
    gc.collect()
    gc.disable()
    run = CoreRun(hosts)
    times = [time.process_time()]
    for phase in (run.form, run.lose_host):
        phase()
        times.append(time.process_time())
    gc.enable()
    costs = run.costs.all
    return {
        "hosts": hosts,
        "workers": hosts * SLOTS,
        "form_s": round(times[1] - times[0], 4),
        "lost_host_s": round(times[2] - times[1], 4),
        "events": len(costs),
        "event_ms_mean": round(sum(costs) / len(costs) * 1e3, 4),
        "event_ms_max": round(max(costs) * 1e3, 3),
        "event_without_plan_ms_max": round(max(run.costs.without_plan) * 1e3, 3),
        "by_kind": {
            kind: {"events": len(c), "ms_mean": round(sum(c) / len(c) * 1e3, 4), "ms_max": round(max(c) * 1e3, 3)}
            for kind, c in sorted(run.costs.by_kind.items())
        },
    }


def measure_core(sizes: list[int]) -> Iterator[dict[str, Any]]:
    """The core's costs at each size, and how they grow."""
    lines = []
    for hosts in sizes:
        lines.append(measured(hosts))
        yield lines[-1]
    smallest, largest = _ends(lines)
    growth = largest["event_ms_mean"] / smallest["event_ms_mean"]
    yield {"from_hosts": smallest["hosts"], "to_hosts": largest["hosts"], "event_cost_grows": round(growth, 2)}


def measure_run(sizes: list[int]) -> Iterator[dict[str, Any]]:
    """What a driver takes at each size, and by how much more for each host."""
    lines = []
    for hosts in sizes:
        lines.append(scale_run.measured(hosts))
        yield lines[-1]
    smallest, largest = _ends(lines)
    if (more := largest["hosts"] - smallest["hosts"]) > 0:
        phases = [name for name, found in smallest.items() if isinstance(found, dict)]
        slopes = {
            name: {
                f"{figure}_for_each_1000_hosts": round(
                    (largest[name][figure] - smallest[name][figure]) / more * 1000, 3
                )
                for figure in ("s", "driver_cpu_s", "driver_core", "driver_mb")
                if figure in smallest[name]
            }
            for name in phases
        }
        yield {"from_hosts": smallest["hosts"], "to_hosts": largest["hosts"], **slopes}


def _ends(lines: list[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    ordered = sorted(lines, key=lambda line: int(line["hosts"]))
    return ordered[0], ordered[-1]


def main() -> None:
    """Print what is asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    what = parser.add_subparsers(required=True)
    for name, title, sizes, usual, measure in (
        ("core", "the core alone", "hosts", [10, 100, 1000], measure_core),
        ("run", "a driver with simulated agents", "hosts", [10, 100, 1000], measure_run),
        (
            "store",
            "the store of a round with many members",
            "members",
            [64, 256, 1024],
            lambda sizes: chain.from_iterable(map(scale_store.measured, sizes)),
        ),
        ("sync", "a sync over links in virtual time", "receivers", [1, 8, 63], partial(map, scale_sync.measured)),
        ("groups", "real groups of workers on this machine", "workers", [4, 8, 16, 32], scale_groups.measured),
    ):
        part = what.add_parser(name, help=title)
        part.add_argument(f"--{sizes}", type=int, nargs="+", default=usual, metavar="N", dest="sizes")
        part.set_defaults(measure=measure)
    flags = parser.parse_args()
    end_well_on_sigterm()
    for line in flags.measure(flags.sizes):
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
