"""The agents of a simulated run, one on each host, and the streams between them and the driver."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from edriver.model import events
from edriver.model.cause import AgentFault, AgentFaultKind
from edriver.v1 import cause_pb2
from edriver.v1 import notification_pb2 as pb
from edriver.wire.conversion import round_id_message
from tests.sim.clockwork import Channel
from tests.sim.sim_hosts import Process, SimHost

if TYPE_CHECKING:
    from tests.sim.world import World

AGENT_LEASE = 5.0


class SimAgents:
    """All agents.

    Args:
        world: the rest of the run.

    Attributes:
        hosts: those that have an agent, by name.
        launch_fails: where none can be started.
        stopped: the ids of those that the driver has stopped.
        given_up: the workers of agents that were lost.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng, self._clockwork = world.rng, world.clockwork
        self.hosts: dict[str, SimHost] = {}
        self.launch_fails: set[str] = set()
        self.stopped: set[int] = set()
        self.given_up: set[int] = set()

    def start(self, name: str, agent_id: int) -> None:
        if agent_id in self.stopped:
            return
        if name in self.launch_fails:
            self._world.driver.feed(
                events.AgentLost(name, agent_id, AgentFault(AgentFaultKind.ENDED, "could not be started"))
            )
            return
        self.hosts[name] = SimHost(
            name, agent_id, Channel(self._clockwork, self._delay), Channel(self._clockwork, self._delay)
        )
        self._world.driver.feed(events.AgentConnected(name, agent_id))

    def _delay(self) -> float:
        return self._rng.uniform(0.0005, 0.003) if self._rng.random() < 0.97 else self._rng.uniform(0.01, 0.3)

    def end(self, host: SimHost) -> None:
        host.alive = False
        for process in list(host.processes.values()):
            self._world.workers.die(process)
        if self.hosts.get(host.name) is host:
            del self.hosts[host.name]

    def kill(self, host: SimHost) -> None:
        """The agent dies; its guard ends its workers; the driver sees it at once."""
        if host.alive:
            self.end(host)
            self._world.driver.feed(
                events.AgentLost(host.name, host.agent_id, AgentFault(AgentFaultKind.ENDED, "was killed by SIGKILL"))
            )

    def cut(self, host: SimHost, seconds: float) -> None:
        """The control stream goes silent both ways, or the agent is stopped, for a while."""
        if host.cut_since is not None or not host.alive:
            return
        host.cut_since = self._clockwork.now
        host.down.cut()
        host.up.cut()
        if seconds > AGENT_LEASE:
            self._clockwork.after(AGENT_LEASE, lambda: self._lease_ends(host))
        self._clockwork.after(seconds, lambda: self._heal(host))

    def _heal(self, host: SimHost) -> None:
        if host.abandoned:
            self.end(host)  # it dials again, and is refused
        elif host.alive:
            silent = self._clockwork.now - (host.cut_since or 0.0) > AGENT_LEASE
            host.cut_since = None
            if silent:
                self._world.driver.feed(events.AgentConnected(host.name, host.agent_id))
            host.down.heal()
            host.up.heal()

    def _lease_ends(self, host: SimHost) -> None:
        if host.alive:
            self._world.driver.feed(
                events.AgentSilent(host.name, host.agent_id, AgentFault(AgentFaultKind.SILENT, seconds=5.0))
            )

    def note_loss(self, process: Process) -> None:
        """As the agent does, see Driverless: without a driver, a member that has left its round frees the others."""
        if process.in_round is None:
            return
        host, round_id = process.host, round_id_message(process.in_round)
        if round_id != host.lost_round.round_id:
            host.lost_at = self._clockwork.now
        host.lost_round.note(round_id, cause_pb2.Cause(text="a member is lost"))
        if self._world.driver.gone_at is not None:
            self.free_members(host)

    def free_members(self, host: SimHost) -> None:
        rounds = {
            worker_id: round_id_message(process.in_round)
            for worker_id, process in host.processes.items()
            if process.in_round is not None
        }
        for worker_id, notice in host.lost_round.notices(rounds):
            self._clockwork.after(0.001, partial(self._take_from, host, worker_id, notice))

    def _take_from(self, host: SimHost, worker_id: int, notice: pb.Notice) -> None:
        self._world.workers.take(host.processes.get(worker_id), notice)

    def feed_if_alive(self, host: SimHost, event: events.Event) -> None:
        if not host.abandoned and (self.hosts.get(host.name) is host or not host.alive):
            self._world.driver.feed(event)

    def workers_of(self, host: str, agent_id: int) -> set[int]:
        """The workers that an agent has started and that are alive."""
        record = self.hosts.get(host)
        return set(record.processes) if record and record.agent_id == agent_id else set()
