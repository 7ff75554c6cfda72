"""Events in any order, sensible or not, for what the core keeps: `python -m tests.sim.random_events --seeds 20000`.

The simulated runs have agents and workers that behave; here a worker that waits may be said to be done, a host may
vanish and return at every step, and answers come to questions that were not asked.
"""

from __future__ import annotations

import argparse
import random
import sys
import traceback
from dataclasses import replace

from edriver.driver.core.membership import Membership
from edriver.model import actions, events
from edriver.model.cause import AgentFault, AgentFaultKind, NoBoundary, NotFinite
from edriver.model.hosts import Host, HostSet
from edriver.model.ids import NO_ROUND, NO_VERSION, RoundId, Version
from edriver.model.mode import CheckpointWay, Mode
from edriver.model.plan import RoundPlan
from edriver.model.settings import Settings
from edriver.model.store_address import StoreAddress
from tests.sim.scanning import check_indexes

HOSTS = "abcdef"
FAULT = AgentFault(AgentFaultKind.ENDED, "killed")
ERRORS = tuple(f'Traceback:\n  File "train.py", line {line}, in train\nValueError: bad\n' for line in (1, 2))
NO_BOUNDARY = NoBoundary(10, "train.py:3 (train)")
NOT_FINITE = NotFinite("loss", "nan", "train.py:4 (train)")
STACKS = 'File "train.py", line 3, in evaluate'


class RandomEvents:
    """One run.

    Args:
        seed: what it is drawn from.
    """

    def __init__(self, seed: int) -> None:
        self._draw = draw = random.Random(seed)
        least = draw.randint(1, 3)
        first = draw.randint(least, 6)
        settings = Settings(
            np=first,
            min_np=least,
            max_np=draw.randint(first, 9),
            mode=draw.choice((Mode.ELASTIC, Mode.ELASTIC, Mode.RESTART)),
            start_timeout=draw.choice((20.0, 600.0)),
            elastic_timeout=draw.choice((30.0, 600.0)),
            leave_grace=draw.choice((2.0, 30.0)),
            join_window=draw.choice((0.5, 3.0)),
            resize_pause=draw.choice((0.0, 5.0)),
            rejoin_timeout=draw.choice((3.0, 30.0)),
            reset_limit=draw.choice((None, None, 3)),
            failure_window=draw.choice((5.0, 600.0)),
        )
        size = random.Random(seed ^ 0x2EB1).choice((1, 1, 2, 3))
        if settings.mode is Mode.ELASTIC and size > 1:
            least, first = size * (least % 2 + 1), size * 2
            most = first + size * (settings.max_np % 2)
            settings = replace(settings, np=first, min_np=least, max_np=most, replica_size=size)
        self.core = Membership(settings, now=0.0, draw=draw.random)
        self._settings = settings
        self._now = 0.0
        self._plan: RoundPlan | None = None
        self._agents: dict[str, int] = {}
        self._checkpoints = draw.random() < 0.4
        self._weights = draw.choice(((16, 2, 8, 9, 5, 2), (12, 0, 8, 4, 14, 1)))  # the second: workers fail

    def run(self, steps: int) -> int:
        """Feed events until the run ends, so many at most; returns how many."""
        self._feed(self._hosts())
        for step in range(steps):
            if self.core.ended:
                return step
            self._now += self._draw.choice((0.0, 0.01, 0.3, 1.0, self._draw.uniform(0.0, 5.0)))
            deadline = self.core.next_deadline
            if deadline is not None and self._draw.random() < 0.25:
                self._now = max(self._now, deadline)
                self._feed(events.Ticked())
            else:
                self._feed(self._event())
        return steps

    def _feed(self, event: events.Event) -> None:
        for action in self.step(event):
            match action:
                case actions.StartAgent(host, agent_id):
                    self._agents[host] = agent_id
                case RoundPlan():
                    self._plan = action
        check_indexes(self.core)

    def step(self, event: events.Event) -> list[actions.Action]:
        """Give the core an event."""
        return self.core.step(event, self._now)

    def _hosts(self) -> events.HostsObserved:
        named = [name for name in HOSTS if self._draw.random() < 0.7]
        self._draw.shuffle(named)
        return events.HostsObserved(HostSet(tuple(Host(name, self._draw.randint(1, 4)) for name in named)))

    def _event(self) -> events.Event:
        draw = self._draw
        kinds = (self._waiting, self._hosts, self._of_agent, self._of_round, self._of_process, self._of_operator)
        (kind,) = draw.choices(kinds, self._weights)
        return kind()

    def _worker(self) -> int:
        known = list(self.core.roster.workers)
        members = [w for w in self._plan.workers if w in self.core.roster.workers] if self._plan else []
        return self._draw.choice((members if self._draw.random() < 0.5 else known) or known or [1])

    @property
    def _round_id(self) -> RoundId:
        return self._plan.round_id if self._plan else NO_ROUND

    def _waiting(self) -> events.Event:
        draw, worker_id = self._draw, self._worker()
        was_member = self._plan is not None and worker_id in self._plan.workers
        trained = Version(self._round_id, draw.choice((0, 1, 1, 5)))
        call = self.core.rounds.call.ordinal
        return events.WorkerWaiting(
            worker_id,
            call if draw.random() < 0.9 else draw.randint(1, call + 1),
            draw.choice((NO_VERSION, trained, trained)) if was_member else NO_VERSION,
            StoreAddress("host", worker_id),
            draw.choice(("", "", "digest")),
            draw.choice((0, 0, 2)),
            checkpoint=draw.choice((None, 0, 5, 5, 9)) if self._checkpoints else None,
            sealed=draw.choice((None, None, Version(self._round_id, 2))) if was_member else None,
        )

    def _of_agent(self) -> events.Event:
        host = self._draw.choice(HOSTS)
        agent_id = self._agents.get(host, 1)
        found: list[events.Event] = [events.AgentConnected(host, agent_id)] * 5
        found += [events.AgentLost(host, agent_id, FAULT), events.AgentSilent(host, agent_id, FAULT)]
        return self._draw.choice(found)

    def _of_round(self) -> events.Event:
        draw, worker_id, round_id = self._draw, self._worker(), self._round_id
        number = self.core.round.interrupts if self.core.round else 1
        passed = draw.randint(0, 3)
        found: tuple[events.Event, ...] = (
            events.FirstBoundaryPassed(worker_id, round_id, {}, draw.choice(("", "digest"))),
            events.BoundaryReached(worker_id, round_id, number, passed, draw.choice(list(CheckpointWay))),
            events.WorkerDone(worker_id, round_id, passed),
            events.CollectiveRaised(worker_id, round_id, "traceback"),
            events.CheckpointSaved(worker_id, round_id),
            events.CheckpointWritten(worker_id, draw.randint(0, 3)),
            events.PeerUnproven(worker_id, round_id, "reason"),
            events.WorkerBlocked(worker_id, round_id, passed, draw.choice((0.0, 3.0))),
            events.WorkerIdle(worker_id, round_id, draw.choice((0.0, 10.0))),
            events.WorkerStalled(worker_id, round_id, "step", 60.0, STACKS),
            events.WorkerStuck(worker_id, round_id),
            events.ScriptWarned(worker_id, round_id, 0, draw.choice((NO_BOUNDARY, NOT_FINITE))),
        )
        return draw.choice(found)

    def _of_process(self) -> events.Event:
        draw, worker_id = self._draw, self._worker()
        return draw.choice(
            (
                events.WorkerFailed(worker_id, draw.choice(ERRORS), draw.random() < 0.3),
                events.WorkerEnding(worker_id),
                events.WorkerExited(worker_id, draw.choice((0, 0, 1, -9, -15))),
                events.LeaseExpired(worker_id, 5.0),
                events.WorkerQuiet(worker_id),
                events.WorkerAnswered(worker_id),
                events.ExitOverdue(worker_id, 9.0),
            )
        )

    def _of_operator(self) -> events.Event:
        draw, host, slot = self._draw, self._draw.choice(HOSTS), self._draw.choice((None, 0, 1))
        return draw.choice(
            (
                events.DrainRequested(host, slot, "reason", "", draw.choice((0.0, 5.0, 60.0)), draw.random() < 0.3),
                events.UndrainRequested(host, slot),
                events.ResizeRequested(draw.randint(self._settings.min_np, self._settings.max_np)),
                events.DiscoveryFailed("reason"),
                events.CheckpointRequested(),
            )
        )


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim.random_events", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    options = parser.parse_args()
    fed = failed = 0
    for seed in range(options.first, options.first + options.seeds):
        try:
            fed += RandomEvents(seed).run(steps=100)
        except AssertionError as error:
            failed += 1
            print(f"seed {seed}: {error}\n{traceback.format_exc(limit=-2)}", file=sys.stderr)
    print(f"{options.seeds} seeds, {fed} events: {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
