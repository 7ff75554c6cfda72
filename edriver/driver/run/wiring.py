"""The parts of one run, made and given to one another. Nothing runs yet."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from edriver.discovery.slot_counts import SlotCounts
from edriver.discovery.sources import FixedHosts
from edriver.driver.agents.agent_service import AgentServer
from edriver.driver.agents.registry import AgentRegistry
from edriver.driver.config.options import RunOptions
from edriver.driver.core.demand import demand_of
from edriver.driver.core.membership import Membership
from edriver.driver.core.standby_hosts import standbys_of
from edriver.driver.feeds.broker_feed import BrokerFeed, UnusedHosts
from edriver.driver.feeds.discovery_feed import DiscoveryFeed
from edriver.driver.feeds.inbound import Inbound
from edriver.driver.feeds.mailbox import Mailbox
from edriver.driver.journal.journal import Head, Journal, JournalLostError
from edriver.driver.journal.keyed_random import KeyedRandom
from edriver.driver.launch.agents import Agents
from edriver.driver.launch.broker import BrokerContext
from edriver.driver.launch.choice import choice
from edriver.driver.launch.device_counts import device_counter
from edriver.driver.launch.launcher import LaunchContext
from edriver.driver.launch.local import OwnNames, address_among, interface_address
from edriver.driver.observe.console.output import Output
from edriver.driver.observe.environment_copies import EnvironmentCopies
from edriver.driver.observe.event_history import EventHistory
from edriver.driver.observe.hosts.usage import UsageTracker
from edriver.driver.observe.progress import ProgressTracker
from edriver.driver.observe.records.output_files import OutputFiles
from edriver.driver.observe.records.output_recorder import OutputRecorder
from edriver.driver.observe.records.record_file import RecordFile
from edriver.driver.observe.records.recorder import EventLogWriter, Recorder, writers_of
from edriver.driver.observe.worker_output import WorkerOutput
from edriver.driver.run.core_loop import CoreLoop
from edriver.driver.run.shutdown import Shutdown
from edriver.driver.run.stop_requests import StopRequests
from edriver.driver.services.control import ControlServer
from edriver.driver.services.issued_credentials import IssuedCredentials
from edriver.driver.services.join_configs import JoinConfigs
from edriver.driver.services.run_credentials import RunCredentials
from edriver.driver.services.stack_questions import StackQuestions
from edriver.driver.services.status import StatusServer
from edriver.driver.services.tcp_endpoint import TcpEndpoint
from edriver.model import events
from edriver.model.cause import AgentFault, AgentFaultKind, Cause, CauseKind, Count, ReportedText
from edriver.system.record_folder import OUTPUT_FOLDER
from edriver.system.runs import SOCKET_NAME
from edriver.v1 import agent_pb2
from edriver.wire.conversion import duration
from edriver.wire.health_port import HealthPort
from edriver.wire.orders import worker_logs_message

if TYPE_CHECKING:
    from edriver.driver.observe.metrics.server import MetricsServer

_log = logging.getLogger("edriver.driver")

INBOX_LIMIT: Final = 10_000


def _restart_mode(options: RunOptions) -> agent_pb2.RestartMode | None:
    if options.settings.mode.members_survive:
        return None
    logs = worker_logs_message(options.logs) if options.logs else None
    return agent_pb2.RestartMode(max_restarts=options.settings.reset_limit, logs=logs)


class Wiring:
    """What a run is made of.

    Args:
        options: the options of the run.
        head: what another driver of it has to know.
        output: where everything is printed.
        records: the folder for its records; None: it has none.
        clock: seconds, monotonic.
        wall_clock: seconds since the epoch, for users' listeners.
        journal: what another driver could take the run over from; None if there is none.
        leave: ends this process at once, because another driver may have the journal.

    Attributes:
        inbox: the events that the core is still to be given.
        membership: the core.
        loop: feeds it.
        tracker: how far training is.
        event_history: the events.
        usage: what hosts and workers use.
        recorder: writes that down.
        output_recorder: keeps the workers' output beside it; None: nothing does.
        discovery: polls the host source.
        broker: tells a broker what the run needs; None: no engine is asked for hosts.
        registry: the agents that the run knows.
        agents: starts and kills them.
        dial_in_hosts: the hosts that dial in; None: none do.
        stops: requests to end the run.
        shutdown: how agents end.
        server: AgentService,
        control: ControlService,
        status: and StatusService,
        socket: for agents and commands of this machine here,
        endpoint: for others there,
        credentials: with what those have to show.
        metrics: for Prometheus; None if there are none.
        listens: set when agents can dial in.
        health: for probes; None if there are none.
    """

    def __init__(
        self,
        options: RunOptions,
        head: Head,
        output: Output,
        records: Path | None,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        journal: Journal | None,
        leave: Callable[[JournalLostError], NoReturn],
    ) -> None:
        self._head = head
        self._own_names = OwnNames()
        run_id, folder, draws = head.run_id, Path(head.folder), KeyedRandom(head.key)
        self.inbox: Mailbox[Inbound] = Mailbox(INBOX_LIMIT)
        self.membership = Membership(options.settings, head.began[0], draw=draws.random)
        self.tracker = ProgressTracker(clock)
        self.event_history = EventHistory(self.membership, self.tracker, wall_clock)
        self.usage = UsageTracker(self.membership.roster)
        writers = [] if records is None else writers_of(records, run_id, self.event_history.began)
        if options.event_log is not None:
            writers.append(EventLogWriter(RecordFile(options.event_log, "event log"), progress=False))
        self.recorder = Recorder(writers, self.event_history.began, wall_clock)
        sleep = options.dial_in_hosts.sleep if options.dial_in_hosts else asyncio.sleep
        fixed = isinstance(options.source, FixedHosts)
        counts = SlotCounts(
            device_counter(options.launcher_name, options.ssh),
            clock,
            self._known_slots,
            needed=options.settings.min_np if fixed and head.incarnation == 1 else None,
        )
        self.discovery = DiscoveryFeed(
            options.source, self.inbox, wall_clock, sleep, self._unsteady, self._failing, counts=counts
        )
        self.stops = StopRequests(self.inbox)
        self.registry = AgentRegistry(
            self.inbox, clock, self._agent_ended, draws.secret, lambda: len(self.membership.roster.workers)
        )
        self.registry.standbys = lambda: standbys_of(self.membership, options.standby_workers)
        welcome = agent_pb2.Welcome(
            command=options.worker_command,
            standby_command=options.standby_command,
            restart_mode=_restart_mode(options),
            driver_lease=duration(options.driver_timeout),
            worker_lease=duration(options.worker_lease),
            exit_timeout=duration(options.exit_timeout),
            stall_limits={phase: duration(limit) for phase, limit in options.stall_limits.items()},
            output_folder=options.output_folder,
            incarnation=head.incarnation,
            resumable=journal is not None,
            copy_environment=options.copy_environment,
            checkpoint_memory=options.checkpoint_memory,
            checkpoint_bandwidth=options.checkpoint_bandwidth,
            reads_more=True,
        )
        worker_output = WorkerOutput(wall_clock) if options.logs_kept else None
        self.output_recorder = (
            OutputRecorder(OutputFiles(records / OUTPUT_FOLDER), wall_clock)
            if options.logs_kept and records is not None
            else None
        )
        omitted: Counter[str] = Counter()

        def forward(host: str, batch: agent_pb2.ForwardOutputRequest) -> None:
            output.forward(host, batch)
            if worker_output is not None:
                worker_output.add(host, batch)
            if self.output_recorder is not None:
                self.output_recorder.put(host, batch)
            if batch.dropped:
                omitted[host] += batch.dropped
                self.loop.warn(Cause(CauseKind.OUTPUT_OMITTED, host=host, detail=Count(omitted[host])), said=True)

        self.dial_in_hosts = dial_in_hosts = options.dial_in_hosts
        self.server = AgentServer(
            run_id,
            welcome,
            self.registry,
            self.inbox,
            forward,
            on_agent_ended=self._agent_ended,
            credentials=lambda: self.endpoint.worker_credentials,
            dial_in_hosts=dial_in_hosts,
            on_progress=lambda report: self.loop.publish(self.event_history.record_progress(report)),
            on_stacks=lambda taken: self.stacks.answered(taken),
            on_usage=self.usage.record,
            on_memory_kill=lambda kill: self.loop.memory_killed(kill),
            on_output_unwritten=lambda host, lost: self.loop.output_unwritten(host, lost),
            on_environment_copy=EnvironmentCopies().take,
            clock=wall_clock,
        )
        self._address = interface_address(options.network_interface) if options.network_interface else ""
        self.stacks = StackQuestions(self.registry.ask, clock)
        self.control = ControlServer(self.membership, self.inbox.put, self.stops.stop)
        self.status = StatusServer(
            run_id,
            self.membership,
            self.event_history,
            wall_clock,
            options.command,
            clock,
            name=options.name,
            tags=options.tags,
            output=worker_output,
            stacks=self.stacks,
            usage=self.usage,
        )
        self.endpoint = TcpEndpoint(
            run_id,
            self.server,
            self.status,
            self.control,
            self._address,
            head.port or options.port,
            secure=not options.insecure,
            addresses=options.driver_addresses,
            made=RunCredentials.parse(head.credentials.encode()) if head.credentials else options.run_credentials,
            on_open=self._note_network,
        )
        self.credentials = IssuedCredentials(
            self.endpoint,
            options.dial_in,
            options.status_credentials,
            options.control_credentials,
            awaited=dial_in_hosts is not None and options.run_credentials is not None,
        )
        self.broker = self._broker_feed(options, run_id, clock)
        self.socket = folder / SOCKET_NAME
        admit = dial_in_hosts.admit if dial_in_hosts else None
        context = LaunchContext(run_id, options.ssh.port, options.ssh.identity_file, admit, options.source)
        secret_of, interface = self.registry.secret_of, options.network_interface
        self.agents = Agents(
            choice(options.launcher, context, self._reach),
            JoinConfigs(folder, self.socket, self.endpoint, run_id, os.environ, secret_of, interface),
            self._agent_exited,
            on_start=self.registry.started,
            network=self.endpoint.open,
        )
        self.shutdown = Shutdown(self.registry, self.agents, dial_in_hosts, self.stops.hurry, self.inbox)
        self.metrics = None if options.metrics is None else self._metrics_server(run_id, *options.metrics)
        self.listens = asyncio.Event()
        self.health = None if options.health_port is None else HealthPort(options.health_port, self.listens)
        self.loop = CoreLoop(
            self.membership,
            self.inbox,
            self.registry,
            self.agents,
            self.shutdown,
            self.event_history,
            self.status,
            self.recorder,
            journal,
            draws,
            clock,
            wall_clock,
            leave,
        )

    def _known_slots(self, host: str) -> int:
        record = self.membership.roster.hosts.get(host)
        return 0 if record is None else record.slots

    def _unsteady(self, host: str, changes: int) -> None:
        self.loop.warn(Cause(CauseKind.HOST_UNSTEADY, host=host, detail=Count(changes)))

    def _failing(self, why: str) -> None:
        if why:  # the feed has printed it
            self.loop.warn(Cause(CauseKind.DISCOVERY_FAILED, detail=ReportedText(why)), said=True)
        else:
            self.event_history.warnings.withdraw(CauseKind.DISCOVERY_FAILED)

    async def _note_network(self, endpoint: TcpEndpoint) -> None:
        made = endpoint.run_credentials
        credentials = made.for_driver().decode() if made else ""
        await self.loop.write_head(replace(self._head, port=endpoint.port, credentials=credentials))

    def _broker_feed(self, options: RunOptions, run_id: str, clock: Callable[[], float]) -> BrokerFeed | None:
        if options.broker is None:
            return None
        make, argument, slots, idle_timeout = options.broker
        endpoint = self.endpoint
        context = BrokerContext(
            run_id,
            argument,
            slots,
            options.dial_in,
            driver=lambda: endpoint.credentials("").drivers[0],
            source=options.source,
        )
        unused = UnusedHosts(idle_timeout, clock)
        return BrokerFeed(
            make(context),
            lambda: unused.settled(demand_of(self.membership)),
            self.inbox,
            proven=self._head.incarnation > 1,
        )

    def _metrics_server(self, run_id: str, address: str, port: int) -> MetricsServer:
        from edriver.driver.observe.metrics.server import MetricsServer  # prometheus_client, which others do without

        return MetricsServer(
            run_id, self.membership, self.event_history, self.discovery.polls, address, port, usage=self.usage
        )

    def _agent_exited(self, host: str, agent_id: int, reason: str) -> None:
        if self.dial_in_hosts is not None:  # also one that was ordered to end: another may dial in under its name
            self.dial_in_hosts.leave(host, agent_id)
        self.inbox.put(events.AgentLost(host, agent_id, AgentFault(AgentFaultKind.ENDED, reason)))

    def _agent_ended(self, agent_id: int) -> None:
        self.agents.agent_ended(agent_id)

    async def _reach(self, host: str) -> str | None:
        hosts = self.membership.roster.hosts
        address = await address_among(host, list(hosts), self._address)
        if address is not None and (
            found := self._own_names.add(host, lambda name: name in hosts and hosts[name].present)
        ):
            _log.warning("%s", found)
        return address
