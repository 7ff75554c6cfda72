"""What the driver's Welcome settles for the workers of this host."""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from edriver.agent.settings import AgentSettings
from edriver.agent.workers import network_variables
from edriver.agent.workers.log_files import HELD_BACK, TO_DRIVER, Destination, LogFiles, worker_files
from edriver.agent.workers.ready_socket import READY_SOCKET
from edriver.agent.workers.relocation import Relocation
from edriver.agent.workers.worker_environment import (
    ELASTIC_DEFAULTS,
    cuda_devices,
    restart_environment,
    worker_environment,
)
from edriver.agent.workers.worker_files import WorkerFiles
from edriver.common.checkpoint_server import SERVER_SOCKET, ServerConfig
from edriver.common.run_clock import RunClock
from edriver.common.standby import IMPORTS_VARIABLE
from edriver.common.store_proxy import PROXY_SOCKET
from edriver.system.own_addresses import is_loopback
from edriver.v1 import agent_pb2, notification_pb2
from edriver.wire.conversion import epoch_seconds, span_seconds
from edriver.wire.tls_files import write_tls_files

logger = logging.getLogger("edriver.agent")


class WorkerSettings:
    """The settings with which workers of this host start: the driver's command and limits, this host's address, the
    run's TLS credentials.

    Args:
        settings: the agent's settings.
        environment: the agent's environment, which its workers inherit, except variables that name network interfaces
            that this host does not have. A command that may lead into another network keeps these variables, too.

    Attributes:
        command: the command of a worker.
        standby_command: that of a standby in elastic mode; empty: there are none.
        worker_lease: the seconds that a worker may be silent.
        exit_timeout: the seconds that its process may take to end after its script.
        stall_limits: the time limit of each phase, in seconds; 0 or missing: no limit.
        restart_mode: the settings of workers in restart mode; None in another mode.
        logs: the files for their output once they have a place in a round; None: all output goes to the driver.
        clock: the run's clock, in seconds since the epoch.
        copy_environment: the folder in which this host is to have a copy of the workers' Python environment; empty: it
            needs none.
    """

    def __init__(self, settings: AgentSettings, environment: Mapping[str, str]) -> None:
        self._settings = settings
        self._environment = environment
        self._address = settings.address
        self._interface: str | None = None
        self._tls_folder: Path | None = None
        self._observed_address = ""
        self._output_folder = ""
        self.clock = RunClock()
        self.command: Sequence[str] = ()
        self.standby_command: Sequence[str] = ()
        self.worker_lease = 0.0
        self.exit_timeout = 0.0
        self.stall_limits: Mapping[str, float] = {}
        self.restart_mode: agent_pb2.RestartMode | None = None
        self._checkpoint_memory = self._checkpoint_bandwidth = 0
        self.logs: LogFiles | None = None
        self.copy_environment = ""
        self._relocation: Relocation | None = None

    def take(self, welcome: agent_pb2.Welcome) -> None:
        """Take a Welcome in; the first TLS credentials that come are kept in the agent's folder."""
        self._observed_address = welcome.observed_address
        self._output_folder = welcome.output_folder
        if not self.command and network_variables.stay_valid(welcome.command):
            self._environment = network_variables.usable(self._environment)
        self.command = welcome.command
        self.standby_command = welcome.standby_command
        self.copy_environment = welcome.copy_environment
        if self._relocation is not None:
            self._relocate(self._relocation)
        if welcome.HasField("now"):
            self.clock.follow(epoch_seconds(welcome.now))
        self.worker_lease = span_seconds(welcome.worker_lease)
        self.exit_timeout = span_seconds(welcome.exit_timeout)
        self.stall_limits = {phase: span_seconds(limit) for phase, limit in welcome.stall_limits.items()}
        self.restart_mode = welcome.restart_mode if welcome.HasField("restart_mode") else None
        self._checkpoint_memory = welcome.checkpoint_memory
        self._checkpoint_bandwidth = welcome.checkpoint_bandwidth
        if welcome.restart_mode.HasField("logs") and self.logs is None:
            self.logs = self._log_files(welcome.restart_mode.logs)
        if welcome.HasField("credentials") and self._tls_folder is None:
            self._tls_folder = write_tls_files(welcome.credentials, self._settings.folder)

    def use_copy(self, relocation: Relocation) -> None:
        """From now on workers and standbys start in this copy of their Python environment."""
        self._relocation = relocation
        self._relocate(relocation)
        self._environment = relocation.environment(self._environment)

    def _relocate(self, relocation: Relocation) -> None:
        path = self._environment.get("PATH")
        self.command = relocation.command(self.command, path)
        self.standby_command = relocation.command(self.standby_command, path)

    def find_address(self) -> None:
        """Find where this host's workers are reached, unless that is by a loopback address.

        Raises:
            OSError: this host has no address of the kind.
            ValueError: it has not the interface that it should have.
        """
        if is_loopback(self._address):
            return
        from edriver.agent.addresses import interface_of, own_address  # a run on one machine does without psutil

        self._address = self._address or own_address(self._observed_address, self._settings.interface)
        self._interface = interface_of(self._address)

    def environment_of(self, order: agent_pb2.StartWorker) -> dict[str, str]:
        """The environment of a worker to start."""
        folder = self._settings.folder
        files = WorkerFiles(folder, order.worker_id)
        restart = self.restart_mode
        imports = folder / f"imports.{order.slot}"
        environment = worker_environment(
            self._environment,
            run_id=self._settings.run_id,
            worker_id=order.worker_id,
            host=self._settings.host,
            slot=order.slot,
            address=self._address,
            interface=self._interface,
            socket_path=files.socket,
            ready_path=folder / READY_SOCKET,
            life_path=files.life,
            store_path=files.store,
            agent_pid=os.getpid(),
            tls_folder=self._tls_folder,
            proxy_path=folder / PROXY_SOCKET if self.store_proxy_credentials else None,
            # Other hosts are trusted by their credentials alone. Without these workers save to disk themselves.
            checkpoints_path=folder / SERVER_SOCKET if self._tls_folder or is_loopback(self._address) else None,
            # A script that torchrun runs sees all of its host's GPUs, and takes the one of its LOCAL_RANK.
            devices=() if restart else cuda_devices(self._environment),
            stall_limits=self.stall_limits,
            clock_ahead=self.clock.ahead,
            script_defaults={} if restart else ELASTIC_DEFAULTS,
            place_in_replica=(order.position, order.replica_size) if order.replica_size else None,
        )
        if restart:
            environment |= restart_environment(
                address=self._address,
                error_path=files.error,
                imports_path=imports,
                max_restarts=restart.max_restarts if restart.HasField("max_restarts") else None,
            )
        elif self.standby_command:
            environment[IMPORTS_VARIABLE] = str(imports)
        return environment

    @property
    def store_proxy_credentials(self) -> Path | None:
        """The folder of what this host's proxy shows to the stores at which the workers meet those of other hosts.

        None: there is no proxy. All hosts are this machine, or the run has no credentials, or the workers use torch's
        own store, or they may be in another network than this agent.
        """
        if is_loopback(self._address) or self.restart_mode is not None:
            return None
        return self._tls_folder if network_variables.stay_valid(self.command) else None

    @property
    def environment(self) -> Mapping[str, str]:
        """The agent's environment, for processes that are no workers."""
        return self._environment

    def checkpoint_server(self) -> ServerConfig:
        """What this host's checkpoint server is started with."""
        here = is_loopback(self._address)
        return ServerConfig(
            folder=str(self._settings.folder),
            address="" if here else self._address,
            tls_folder="" if here or self._tls_folder is None else str(self._tls_folder),
            memory_limit=self._checkpoint_memory,
            bandwidth=self._checkpoint_bandwidth,
            run_id=self._settings.run_id,
            host=self._settings.host,
            environment=str(self._relocation.source) if self._relocation else "",
            environment_copy=str(self._relocation.copy) if self._relocation else "",
        )

    def keep_imports(self, imported: notification_pb2.ModulesImported) -> None:
        """Have the first workers here import what those of other hosts have imported, before they are ready."""
        record = {"modules": list(imported.names), "environment": dict(imported.environment)}
        try:
            (self._settings.folder / "imports.elsewhere").write_text(json.dumps(record))
        except OSError as error:
            logger.debug("the workers here import nothing early: %s", error)

    def destinations(self, order: agent_pb2.StartWorker) -> tuple[Destination, Destination]:
        """Where the stdout and the stderr of a worker to start go."""
        if self.logs is not None:
            return HELD_BACK
        if not self._output_folder:
            return TO_DRIVER
        return worker_files(Path(self._output_folder, f"{self._settings.host}.{order.slot}"), order.worker_id)

    def _log_files(self, choice: agent_pb2.WorkerLogs) -> LogFiles | None:
        run_id, host = self._settings.run_id, self._settings.host
        try:
            folder = choice.folder or tempfile.mkdtemp(prefix="edriver_logs_")
        except OSError as error:
            logger.warning("the workers' output is not kept: no folder can be created for it: %s", error)
            return None
        if not choice.folder:
            logger.warning("the workers' output is kept in %s (--log-dir)", folder)
        return LogFiles(Path(folder, f"{run_id}_{host}"), choice)
