"""From the command line's flags to what a run is given: checked here, once, before anything is started.

The file is long because all options stand here, each with its meaning, and so does which of them exclude each other.
"""

from __future__ import annotations

import argparse
import math
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, cast

from edriver.calls import PROGRAM
from edriver.common.lease import MIN_LEASE
from edriver.discovery.errors import DiscoveryError
from edriver.discovery.hosts import parse_host_list
from edriver.discovery.script import HostDiscoveryScript
from edriver.discovery.sources import SOURCE_ENTRY_POINTS as SOURCES
from edriver.discovery.sources import FixedHosts, HostSource, SourceContext, read_hostfile
from edriver.driver.agents.dial_in_hosts import DialInHosts
from edriver.driver.config.engine_flags import hosts_text, with_engine
from edriver.driver.config.output_options import (
    event_log_of,
    folder_of,
    logs_of,
    metrics_of,
    name_of,
    records_of,
    report_to_of,
    tag_of,
)
from edriver.driver.config.plugins import PluginError, plugin
from edriver.driver.config.training_script import (
    ModeChoice,
    PythonCommand,
    is_bare_script,
    mode_of,
    other_launcher,
    program_in_restart_mode,
)
from edriver.driver.config.usage_error import UsageError
from edriver.driver.core.positions import slots_in_replicas
from edriver.driver.core.replicas import whole_replicas
from edriver.driver.launch.broker import BROKER_ENTRY_POINTS as BROKERS
from edriver.driver.launch.broker import BrokerChoice
from edriver.driver.launch.launcher import LAUNCHER_ENTRY_POINTS as LAUNCHERS
from edriver.driver.launch.launcher import LaunchContext, Launcher
from edriver.driver.launch.local import interface_address
from edriver.driver.services.run_credentials import RunCredentials
from edriver.model import defaults
from edriver.model import limits as bounds
from edriver.model.hosts import LOCALHOST, Devices, Host, HostSet, Slots, UncountedHost
from edriver.model.mode import Mode, OnLoss
from edriver.model.settings import WHOLE_HOSTS, Settings
from edriver.model.stall_limits import DEFAULT_STALL_LIMITS, Phase, boundary_timeout, collective_timeout, limits_of
from edriver.model.worker_logs import WorkerLogs
from edriver.system.ssh_client import SshOptions, identity_error
from edriver.text.phrases import count_text, one_replica_text, replicas_text
from edriver.text.wire_text import wire_text

MAX_POLL_TIMEOUT = 20.0
"""Longest that one run of a discovery script may take, in seconds."""

DIAL_IN_LAUNCHER: Final = "dial-in"
"""The launcher of hosts that dial in."""

ENDING_LAUNCHERS: Final = frozenset({"ray"})
"""Launchers whose agents end with the driver: they are actors of its Ray job."""

THIS_MACHINE = "this machine"
"""The hosts if no flag defines them."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of a run.

    Attributes:
        settings: the limits of the run.
        command: a worker's program and arguments; empty only if nothing is to be started.
        source: the host source.
        launcher: creates the launcher of all hosts' agents; None: a suitable launcher for each host.
        launcher_name: the launcher's entry point; empty if none was chosen.
        broker: asks an engine for hosts; None: no engine.
        ssh: how to reach other hosts.
        network_interface: the interface through which hosts reach one another; empty: chosen by routing.
        port: the driver's TCP port, if it needs one; 0: any.
        driver_addresses: the addresses (HOST:PORT) of the run's drivers; empty: this machine only.
        dial_in_hosts: the hosts that dial in, or None.
        dial_in: the file with their credentials, or None.
        run_credentials: the run's credentials, if made before it started; None: the run makes them.
        control_credentials: the file with the credentials of operators on other machines, or None.
        status_credentials: the file with the credentials of observers on other machines, or None.
        stall_limits: the time limit without progress of each phase, in seconds; 0: no limit.
        exit_timeout: the seconds without a sign of life that a worker's process may take to end after its script.
        worker_lease: the seconds that a worker's process may be stopped.
        standby_workers: number of standbys of each host; None: one in elastic mode, one for each slot in restart mode.
        copy_environment: the folder in which each host keeps a copy of the workers' Python environment; empty: there is
            none.
        checkpoint_memory: bytes of memory of each host that checkpoints may use; None: half of the host's.
        checkpoint_bandwidth: bytes per second that each host receives for copies at most; None: no limit.
        driver_timeout: the seconds that agents wait for a driver that is silent but not known to be gone.
        insecure: whether other hosts are reached without TLS and token.
        output_folder: the absolute path of the folder for the workers' output files; empty: no files.
        logs: where the output of workers in restart mode goes; None: it is printed.
        event_log: the file to which the event log is appended, or None.
        health_port: the port for probes of the driver's health, or None.
        metrics: the address and port of the metrics for Prometheus, 0 for any port; None: no metrics.
        report_to: the libraries to which the run is reported, as in edriver.reporting.LIBRARIES.
        records: the folder in which the run creates a folder for its records; None: no records, because they were
            declined or this user has no home.
        records_asked: whether the operator named that folder.
        resumable: whether another driver may take the run over.
        logs_kept: whether the workers' latest output is kept for observers.
        name: the operator's name for the run; may be empty.
        tags: the operator's tags, by name.
        hosts: how hosts are found, in words.
        mode: how the script survives changes of its workers, and why that was chosen.
        verbose: whether each event and action is logged.
    """

    settings: Settings
    command: tuple[str, ...]
    source: HostSource
    launcher: Callable[[LaunchContext], Launcher] | None = None
    launcher_name: str = ""
    broker: BrokerChoice | None = None
    ssh: SshOptions = field(default_factory=SshOptions)
    network_interface: str = ""
    port: int = 0
    driver_addresses: tuple[str, ...] = ()
    dial_in_hosts: DialInHosts | None = None
    dial_in: Path | None = None
    run_credentials: RunCredentials | None = None
    control_credentials: Path | None = None
    status_credentials: Path | None = None
    stall_limits: Mapping[str, float] = field(default_factory=lambda: dict(DEFAULT_STALL_LIMITS))
    exit_timeout: float = defaults.EXIT_TIMEOUT
    worker_lease: float = defaults.WORKER_LEASE
    standby_workers: int | None = None
    copy_environment: str = ""
    checkpoint_memory: int | None = None
    checkpoint_bandwidth: int | None = None
    driver_timeout: float = defaults.DRIVER_TIMEOUT
    insecure: bool = False
    output_folder: str = ""
    logs: WorkerLogs | None = None
    event_log: Path | None = None
    health_port: int | None = None
    metrics: tuple[str, int] | None = None
    report_to: tuple[str, ...] = ()
    records: Path | None = None
    records_asked: bool = False
    resumable: bool = True
    logs_kept: bool = True
    name: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    hosts: str = THIS_MACHINE
    mode: ModeChoice = field(default_factory=lambda: ModeChoice(Mode.ELASTIC, "by default"))
    verbose: bool = False

    def __str__(self) -> str:
        """The run in a few words, for its first line."""
        settings = self.settings
        workers = count_text(settings.np, "worker")
        if settings.min_np < settings.max_np:
            most = "as many as there are" if settings.max_np == bounds.MAX_TOTAL_SLOTS else f"at most {settings.max_np}"
            workers += f" (at least {settings.min_np}, {most})"
        if settings.one_replica:
            workers += f", {one_replica_text(settings.on_loss)},"
        if settings.replica_size != 1:
            workers += f", {replicas_text(settings.replica_size)},"
        if self.calls_function:
            return f"{workers} of {self.name}"
        return f"{workers} of {shlex.join(self.command)}"

    @property
    def calls_function(self) -> bool:
        """Whether this is a run of `edriver.launch`, which calls a function in each worker."""
        return PROGRAM in self.command

    @property
    def worker_command(self) -> tuple[str, ...]:
        """What is started in each slot."""
        if self.mode.mode is not Mode.RESTART:
            return self.command
        python = PythonCommand.of(self.command)
        return program_in_restart_mode(self.command) if python is None else python.in_restart_mode()

    @property
    def standby_command(self) -> tuple[str, ...]:
        """What a standby is started with in elastic mode; empty: none can be, for the command runs no Python script."""
        python = PythonCommand.of(self.command) if self.mode.mode is Mode.ELASTIC else None
        return () if python is None else python.as_standby()


def options_of(flags: argparse.Namespace) -> RunOptions:
    """Judge the parsed flags.

    Looks at files only to refuse early what could never work: a command, a hostfile or an output folder that is not
    there. A discovery script is judged by its first poll. While the hosts' slots are still to be counted for
    `-np auto`, the run has the least size that its flags allow.

    Raises:
        UsageError: a flag is missing, out of range, or contradicts another.
    """
    flags = with_engine(flags)
    if takes_all_slots(flags):
        if flags.broker is not None or _dials_in(flags):
            raise UsageError(
                "-np is missing: give a number of workers to start with; the number of slots of these hosts is not "
                "known in advance"
            )
        flags = argparse.Namespace(**{**vars(flags), "np": flags.min_np or max(1, flags.replica_size)})
        counted = False
    else:
        counted = True
    limits = _stall_limits_of(flags.stall_timeout)
    command = () if flags.explain and not flags.command else _command_of(flags)
    mode = _mode_of(flags.mode, command, no_python=flags.no_python)
    settings = replace(
        _settings_of(flags, limits, mode.mode),
        boundary_timeout=boundary_timeout(limits),
        long_work_timeout=limits[Phase.EVAL] or math.inf,
        idle_timeout=limits[Phase.STEP] or math.inf,
    )
    dial_in_hosts = DialInHosts() if _dials_in(flags) else None
    return RunOptions(
        settings=settings,
        command=command,
        mode=mode,
        source=_source_of(flags, settings, dial_in_hosts, counted=counted),
        launcher=_launcher_of(flags),
        launcher_name=flags.launcher or "",
        broker=_broker_of(flags),
        ssh=_ssh_of(flags),
        port=_port_of("--port", flags.port) or 0,
        driver_addresses=_addresses_of(flags.driver_addresses),
        health_port=_port_of("--health-port", flags.health_port),
        dial_in_hosts=dial_in_hosts,
        dial_in=_dial_in_of(flags),
        run_credentials=_run_credentials_of(flags),
        control_credentials=_new_file_of("--control-credentials", flags.control_credentials),
        status_credentials=_new_file_of("--status-credentials", flags.status_credentials),
        network_interface=_interface_of(flags.network_interface),
        stall_limits=limits,
        exit_timeout=_exit_timeout_of(flags.exit_timeout),
        worker_lease=_lease_of("--worker-lease", flags.worker_lease),
        standby_workers=_standby_workers_of(flags.standby_workers),
        copy_environment=_copy_environment_of(flags.copy_environment),
        checkpoint_memory=flags.checkpoint_memory,
        checkpoint_bandwidth=flags.checkpoint_bandwidth,
        driver_timeout=_lease_of("--driver-timeout", flags.driver_timeout),
        insecure=flags.insecure,
        output_folder=folder_of("--output-filename", flags.output_filename),
        logs=logs_of(flags, mode),
        event_log=event_log_of(flags.event_log),
        metrics=metrics_of(flags.metrics_port, flags.metrics_address),
        report_to=report_to_of(flags.report_to),
        records=records_of(flags, os.environ),
        records_asked=flags.records is not None,
        resumable=not flags.no_journal and flags.launcher not in ENDING_LAUNCHERS,
        logs_kept=not flags.no_logs,
        name=name_of(flags.name, flags.run),
        tags=dict(map(tag_of, flags.tag)),
        hosts=hosts_text(flags) or THIS_MACHINE,
        verbose=flags.verbose,
    )


def usable_slots(hosts: HostSet, replica_size: int, mode: Mode) -> int:
    """The number of slots of counted hosts that make up whole replicas."""
    if mode.members_survive and replica_size != WHOLE_HOSTS:
        return slots_in_replicas(replica_size, (host.slots for host in hosts))
    return sum(whole_replicas(replica_size, ((host.name, host.slots, host.slots) for host in hosts)).values())


def takes_all_slots(flags: argparse.Namespace) -> bool:
    """Whether as many workers start as the hosts have slots: -np auto, or slots of each host without an -np."""
    return flags.np is Devices.AUTO or (flags.np is None and flags.slots_per_host is not None)


def poll_timeout(settings: Settings) -> float:
    """Seconds that one run of a discovery script may take.

    The first poll must have ended before --start-timeout is over.
    """
    return min(MAX_POLL_TIMEOUT, settings.start_timeout * 2 / 3)


def _settings_of(flags: argparse.Namespace, stall_limits: Mapping[str, float], mode: Mode) -> Settings:
    if flags.np is None:
        raise UsageError(
            "-np is missing: give the number of workers to start with, for example -np 2; -np auto is one for each GPU"
        )
    try:
        return Settings(
            np=flags.np,
            min_np=flags.np if flags.min_np is None else flags.min_np,
            max_np=_max_np_of(flags),
            start_timeout=flags.start_timeout,
            elastic_timeout=flags.elastic_timeout,
            report_timeout=collective_timeout(stall_limits),
            reset_limit=flags.reset_limit,
            reset_window=flags.reset_window,
            resize_pause=flags.resize_pause,
            checkpoint_copies=flags.checkpoint_copies,
            cooldown_range=None if flags.cooldown_range is None else tuple(flags.cooldown_range),
            mode=mode,
            replica_size=flags.replica_size,
            one_replica=flags.one_replica,
            on_loss=OnLoss(flags.on_loss),
        )
    except ValueError as error:
        raise UsageError(str(error)) from None


def _max_np_of(flags: argparse.Namespace) -> int:
    """As in horovodrun: no limit, if the hosts may change. An engine is asked for no more than -np."""
    if flags.max_np is not None:
        return int(flags.max_np)
    if flags.broker is not None:
        return int(flags.np)
    discovered = flags.host_discovery_script or flags.hosts_dial_in or flags.discovery
    return bounds.MAX_TOTAL_SLOTS if discovered else int(flags.np)


def _lease_of(flag: str, seconds: float) -> float:
    if seconds < MIN_LEASE:
        raise UsageError(f"{flag} is {seconds:g}: it must be at least {MIN_LEASE:g}, as machines can be busy")
    return seconds


def _stall_limits_of(texts: list[str]) -> dict[str, float]:
    try:
        return limits_of(texts)
    except ValueError as error:
        raise UsageError(f"--stall-timeout: {error}") from None


def _standby_workers_of(number: int | None) -> int | None:
    if number is not None and number < 0:
        raise UsageError(f"--standby-workers is {number}: it must be 0, for none, or a number of processes")
    return number


def _copy_environment_of(folder: str | None) -> str:
    if folder is None:
        return ""
    if not folder.startswith(("/", "$")) or not folder.isprintable():
        raise UsageError(
            f"--copy-environment is {folder!r}: it must be an absolute path on the hosts' own disks, for example /tmp"
        )
    return folder


def _exit_timeout_of(seconds: float) -> float:
    if seconds <= 0:
        raise UsageError(f"--exit-timeout is {seconds:g}: it must be above 0")
    return seconds


def _command_of(flags: argparse.Namespace) -> tuple[str, ...]:
    words = flags.command
    command = tuple(words[1:] if words[:1] == ["--"] else words)
    if flags.module and flags.no_python:
        raise UsageError("--module and --no-python exclude each other: give only one of them")
    if flags.module and command:
        command = (sys.executable, "-m", *command)
    if not command or not command[0]:
        raise UsageError("the command is missing: add the program to run at the end, for example python train.py")
    for word in command:
        if wire_text(word, len(word) + 100) != word:
            raise UsageError(f"{word!r} in the command is not valid UTF-8: rename the file, or wrap it in a script")
    program = command[0]
    if not flags.no_python and is_bare_script(program):  # as torchrun takes it
        return (sys.executable, *command)
    if shutil.which(program) is None:
        if os.sep not in program:
            if program.endswith(".py"):
                raise UsageError(f"there is no file {program!r} to run")
            # Debian has no `python` outside of a virtual environment.
            way_out = (
                f": give its path, for example {shlex.quote(sys.executable)}" if program.startswith("python") else ""
            )
            raise UsageError(f"there is no command {program!r} on PATH{way_out}")
        if not Path(program).exists():
            raise UsageError(f"there is no file {program!r} to run")
        raise UsageError(f"{program!r} is not an executable file: chmod +x it, or put its interpreter before it")
    return command


def python_path() -> list[Path]:
    """The folders of PYTHONPATH."""
    return [Path(folder) for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]


def _mode_of(wanted: str | None, command: tuple[str, ...], *, no_python: bool) -> ModeChoice:
    if wanted is None:
        if no_python and PythonCommand.of(command) is None and not other_launcher(command):
            return ModeChoice(Mode.RESTART, "--no-python")
        return mode_of(command, Path.cwd(), python_path())
    mode = Mode(wanted)
    if mode is Mode.RESTART and (name := other_launcher(command)):
        raise UsageError(f"--mode restart: {name} starts processes itself: put edriver in its place")
    return ModeChoice(mode, "--mode")


def _source_of(
    flags: argparse.Namespace, settings: Settings, dial_in_hosts: DialInHosts | None, *, counted: bool
) -> HostSource:
    slots = _slots_of(flags)
    given = {
        "-H": flags.hosts,
        "--hostfile": flags.hostfile,
        "--host-discovery-script": flags.host_discovery_script,
        "--hosts-dial-in": flags.hosts_dial_in or None,
        "--discovery": flags.discovery,
    }
    chosen = [flag for flag, value in given.items() if value is not None]
    if len(chosen) > 1:
        raise UsageError(f"{' and '.join(chosen)} both define the hosts: give only one of them")
    if flags.hosts_dial_in and dial_in_hosts is not None:
        return dial_in_hosts
    if flags.host_discovery_script is not None:
        return HostDiscoveryScript(flags.host_discovery_script, slots, poll_timeout(settings))
    if flags.discovery is not None:
        name, _, argument = flags.discovery.partition("=")
        try:
            make = plugin(SOURCES, name)
        except PluginError as error:
            raise UsageError(f"{_flag('--discovery', flags)}: {error}") from None
        try:
            context = SourceContext(argument, _number_of_slots(flags), poll_timeout(settings), dial_in_hosts)
            if dial_in_hosts is not None:
                context = replace(context, changed=dial_in_hosts.wake)
            source = make(context)
        except DiscoveryError as error:
            raise UsageError(f"{_flag(f'--discovery {name}', flags)}: {error}") from None
        return cast("HostSource", source)
    try:
        if flags.hosts is not None:
            hosts = parse_host_list(flags.hosts, slots)
        elif flags.hostfile is not None:
            hosts = read_hostfile(Path(flags.hostfile), slots)
        elif not counted:
            slots = Devices.AUTO if flags.slots_per_host is None else slots
            here = Host(LOCALHOST, slots) if isinstance(slots, int) else UncountedHost(LOCALHOST, devices=slots)
            hosts = HostSet((here,))
        else:
            hosts = HostSet((Host(LOCALHOST, bounds.check_slots(settings.max_np, "--max-np on this machine alone")),))
    except bounds.OutOfBoundsError as error:
        raise UsageError(str(error)) from None
    except DiscoveryError as error:
        raise UsageError(f"-H {flags.hosts!r}: {error}" if flags.hosts is not None else str(error)) from None
    if hosts.is_counted and (usable := usable_slots(hosts, settings.replica_size, settings.mode)) < settings.min_np:
        needed = count_text(settings.min_np, "slot")
        given_by = chosen[0] if chosen else "--slots-per-host"
        if usable < hosts.total_slots:
            raise UsageError(
                f"{given_by} gives {hosts}, of which {count_text(usable, 'slot')} can be used "
                f"{replicas_text(settings.replica_size)}; the run needs {needed} (--min-np, by default -np)"
            )
        why = f"the run needs {needed} (--min-np, by default -np): add slots, or give --min-np {hosts.total_slots}"
        raise UsageError(f"{given_by} gives {hosts}; {why}")
    return FixedHosts(hosts)


def _slots_of(flags: argparse.Namespace) -> Slots:
    """The slots of a host that is listed without a number of them."""
    slots: Slots | None = flags.slots_per_host
    try:
        if slots is None or isinstance(slots, Devices):
            return slots or 1
        return bounds.check_slots(slots, "--slots-per-host")
    except ValueError as error:
        raise UsageError(str(error)) from None


def _number_of_slots(flags: argparse.Namespace) -> int:
    slots = _slots_of(flags)
    if isinstance(slots, Devices):
        raise UsageError(
            f"--slots-per-host {slots}: only hosts of -H, --hostfile and --host-discovery-script are asked for their "
            "devices; give a number"
        )
    return slots


def _dials_in(flags: argparse.Namespace) -> bool:
    return bool(flags.hosts_dial_in or (flags.engine and flags.engine.dials_in))


def _flag(flag: str, flags: argparse.Namespace) -> str:
    """What the operator has given: the flag, or that of an engine which stands for it."""
    return str(flags.engine.flag) if flags.engine else flag


def _launcher_of(flags: argparse.Namespace) -> Callable[[LaunchContext], Launcher] | None:
    if flags.launcher is None:
        return None
    if flags.launcher == DIAL_IN_LAUNCHER and not flags.hosts_dial_in:
        raise UsageError(f"--launcher {DIAL_IN_LAUNCHER} lets in hosts that dial in: give --hosts-dial-in, too")
    if flags.hosts_dial_in and flags.launcher != DIAL_IN_LAUNCHER:
        raise UsageError(f"--hosts-dial-in: nothing is launched there: leave out --launcher {flags.launcher}")
    try:
        return cast("Callable[[LaunchContext], Launcher]", plugin(LAUNCHERS, flags.launcher))
    except PluginError as error:
        raise UsageError(f"{_flag('--launcher', flags)}: {error}") from None


def _broker_of(flags: argparse.Namespace) -> BrokerChoice | None:
    idle = defaults.HOST_IDLE_TIMEOUT if flags.idle_timeout is None else flags.idle_timeout
    if idle < 0:
        raise UsageError(f"--idle-timeout is {idle:g}: it must not be negative")
    if flags.broker is None:
        if flags.idle_timeout is not None:
            raise UsageError("--idle-timeout is for hosts that a cluster gives and takes back: give --broker, too")
        return None
    name, _, argument = flags.broker.partition("=")
    try:
        return BrokerChoice(plugin(BROKERS, name), argument, _number_of_slots(flags), idle)
    except PluginError as error:
        raise UsageError(f"{_flag('--broker', flags)}: {error}") from None


def _ssh_of(flags: argparse.Namespace) -> SshOptions:
    if flags.ssh_port is not None and not 0 < flags.ssh_port < 65536:
        raise UsageError(f"--ssh-port is {flags.ssh_port}: ports lie between 1 and 65535")
    if flags.ssh_identity_file is None:
        return SshOptions(flags.ssh_port)
    if error := identity_error(flags.ssh_identity_file):
        raise UsageError(f"--ssh-identity-file: {error}")
    return SshOptions(flags.ssh_port, str(Path(flags.ssh_identity_file).expanduser()))


def _port_of(flag: str, port: int | None) -> int | None:
    if port is not None and not 0 <= port < 65536:
        raise UsageError(f"{flag} is {port}: ports lie between 1 and 65535")
    return port


def _addresses_of(text: str | None) -> tuple[str, ...]:
    try:
        return bounds.addresses_of(text) if text else ()
    except ValueError as error:
        raise UsageError(f"--driver-addresses: {error}") from None


def _dial_in_of(flags: argparse.Namespace) -> Path | None:
    if _dials_in(flags) and flags.credentials is None and flags.run_credentials is None:
        raise UsageError(
            f"{_flag('--hosts-dial-in', flags)} needs --credentials FILE: the file is written for the "
            "agents of these hosts to read"
        )
    if flags.credentials is not None and not _dials_in(flags):
        raise UsageError("--credentials is for hosts that dial in: give --hosts-dial-in, too")
    return _new_file_of("--credentials", flags.credentials)


def _run_credentials_of(flags: argparse.Namespace) -> RunCredentials | None:
    if flags.run_credentials is None:
        return None
    if flags.insecure:
        raise UsageError(
            "--run-credentials are for TLS and tokens, which --insecure does without: give only one of them"
        )
    try:
        return RunCredentials.read(Path(flags.run_credentials))
    except ValueError as error:
        raise UsageError(f"--run-credentials: {error}") from None


def _new_file_of(flag: str, name: str | None) -> Path | None:
    if name is None:
        return None
    path = Path(name).absolute()
    if path.is_dir() or not path.parent.is_dir():
        raise UsageError(f"{flag} {name!r} cannot be written: give a file in an existing folder")
    return path


def _interface_of(name: str | None) -> str:
    if name is None:
        return ""
    try:
        interface_address(name)
    except ValueError as error:
        raise UsageError(f"--network-interface: {error}") from None
    return name
