"""From the command line's flags to what a run is given: checked here, once, before anything is started."""

from __future__ import annotations

import argparse
import math
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, TypeVar, cast

from edriver.common import defaults
from edriver.common import limits as bounds
from edriver.common.lease import MIN_LEASE
from edriver.common.stall_limits import DEFAULT_STALL_LIMITS, Phase, boundary_timeout, collective_timeout, limits_of
from edriver.discovery.errors import DiscoveryError
from edriver.discovery.hosts import Host, HostSet, parse_host_list
from edriver.discovery.script import HostDiscoveryScript
from edriver.discovery.sources import SOURCE_ENTRY_POINTS as SOURCES
from edriver.discovery.sources import FixedHosts, HostSource, SourceContext, read_hostfile
from edriver.driver.core.mode import Mode
from edriver.driver.core.settings import Settings
from edriver.driver.engine_flags import use_engine
from edriver.driver.launch.broker import BROKER_ENTRY_POINTS as BROKERS
from edriver.driver.launch.broker import BrokerChoice
from edriver.driver.launch.launcher import LAUNCHER_ENTRY_POINTS as LAUNCHERS
from edriver.driver.launch.launcher import LaunchContext, Launcher
from edriver.driver.launch.local import interface_address
from edriver.driver.plugins import PluginError, plugin
from edriver.driver.rpc.dial_in_hosts import DialInHosts
from edriver.driver.training_script import ModeChoice, PythonCommand, mode_of
from edriver.driver.worker_logs import StreamChoice, WorkerLogs, local_ranks
from edriver.system.private_files import open_private
from edriver.system.record_folder import default_root
from edriver.system.ssh_client import SshOptions, identity_error
from edriver.text.phrases import count_text
from edriver.text.wire_text import wire_text

MAX_POLL_TIMEOUT = 20.0
"""Longest that one run of a discovery script may take, in seconds."""

DEFAULT_METRICS_ADDRESS = "127.0.0.1"
"""Where metrics are by default."""

MAX_NAME_LENGTH: Final = 200
"""Characters of a run's name, and of a tag."""

DIAL_IN_LAUNCHER: Final = "dial-in"
"""The launcher of hosts that dial in."""

THIS_MACHINE = "this machine"
"""The hosts if no flag defines them."""

Judged = TypeVar("Judged")


class UsageError(Exception):
    """The flags cannot be used as given; the message is one sentence for the operator."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of a run.

    Attributes:
        settings: the limits of the run.
        command: a worker's program and arguments; empty only if nothing is to be started.
        source: the host source.
        launcher: makes what starts the agents of all hosts; None: for each host what suits it.
        broker: what asks an engine for hosts; None: no engine is asked.
        ssh: how other hosts are reached.
        network_interface: through which interface hosts reach one another; empty: whichever leads there.
        port: the driver's TCP port, should it need one; 0: any.
        dial_in: the file with the credentials of hosts that dial in; None: there are none.
        control_credentials: the file with the credentials of operators on other machines; None: there are none.
        status_credentials: the file with the credentials of observers on other machines; None: there are none.
        stall_limits: seconds without progress that each phase of a worker may last; 0: for ever.
        exit_timeout: seconds without a sign of life that a worker's process may take to end after its script.
        worker_lease: seconds that a worker's process may be stopped.
        driver_timeout: seconds that agents wait for a driver that is silent but not known to be gone.
        insecure: whether other hosts are reached without TLS and token.
        output_folder: absolute path of the folder for the workers' output files; empty: none are written.
        logs: where the output of workers in restart mode goes; None: it is printed.
        event_log: the file to which the event log is appended; None: none is written.
        metrics: the address and port at which Prometheus finds metrics, 0 for any port; None: there are none.
        records: the folder in which the run gets a folder for its records; None: it has none: they were declined,
            or this user has no home.
        records_asked: whether the operator named that folder.
        logs_kept: whether the workers' latest output is kept for observers.
        name: what the operator calls the run; empty: nothing.
        tags: the operator's, by name.
        hosts: how hosts are found, in words.
        mode: how the script survives changes of its workers, and why that was chosen.
        verbose: whether each event and action is logged.
    """

    settings: Settings
    command: tuple[str, ...]
    source: HostSource
    launcher: Callable[[LaunchContext], Launcher] | None = None
    broker: BrokerChoice | None = None
    ssh: SshOptions = field(default_factory=SshOptions)
    network_interface: str = ""
    port: int = 0
    dial_in: Path | None = None
    control_credentials: Path | None = None
    status_credentials: Path | None = None
    stall_limits: Mapping[str, float] = field(default_factory=lambda: dict(DEFAULT_STALL_LIMITS))
    exit_timeout: float = defaults.EXIT_TIMEOUT
    worker_lease: float = defaults.WORKER_LEASE
    driver_timeout: float = defaults.DRIVER_TIMEOUT
    insecure: bool = False
    output_folder: str = ""
    logs: WorkerLogs | None = None
    event_log: Path | None = None
    metrics: tuple[str, int] | None = None
    records: Path | None = None
    records_asked: bool = False
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
        return f"{workers} of {' '.join(self.command)}"

    @property
    def worker_command(self) -> tuple[str, ...]:
        """What is started in each slot."""
        python = PythonCommand.of(self.command)
        restart = python is not None and self.mode.mode is Mode.RESTART
        return python.in_restart_mode() if python and restart else self.command


def options_of(flags: argparse.Namespace) -> RunOptions:
    """Judge the parsed flags.

    Looks at files only to refuse early what could never work: a command, a hostfile or an output folder that is not
    there. A discovery script is judged by its first poll.

    Raises:
        UsageError: a flag is missing, out of range, or contradicts another.
    """
    if conflict := use_engine(flags):
        raise UsageError(conflict)
    limits = _stall_limits_of(flags.stall_timeout)
    command = () if flags.explain and not flags.command else _command_of(flags.command)
    mode = _mode_of(flags.mode, command)
    settings = replace(
        _settings_of(flags, limits),
        boundary_timeout=boundary_timeout(limits),
        idle_timeout=limits[Phase.STEP] or math.inf,
        mode=mode.mode,
    )
    try:
        bounds.check_slots(flags.slots_per_host, "--slots-per-host")
    except ValueError as error:
        raise UsageError(str(error)) from None
    return RunOptions(
        settings=settings,
        command=command,
        mode=mode,
        source=_source_of(flags, settings),
        launcher=_launcher_of(flags),
        broker=_broker_of(flags),
        ssh=_ssh_of(flags),
        port=_port_of(flags.port),
        dial_in=_dial_in_of(flags),
        control_credentials=_new_file_of("--control-credentials", flags.control_credentials),
        status_credentials=_new_file_of("--status-credentials", flags.status_credentials),
        network_interface=_interface_of(flags.network_interface),
        stall_limits=limits,
        exit_timeout=_exit_timeout_of(flags.exit_timeout),
        worker_lease=_lease_of("--worker-lease", flags.worker_lease),
        driver_timeout=_lease_of("--driver-timeout", flags.driver_timeout),
        insecure=flags.insecure,
        output_folder=_folder_of("--output-filename", flags.output_filename),
        logs=_logs_of(flags, mode),
        event_log=_event_log_of(flags.event_log),
        metrics=_metrics_of(flags.metrics_port, flags.metrics_address),
        records=_records_of(flags, os.environ),
        records_asked=flags.records is not None,
        logs_kept=not flags.no_logs,
        name=_name_of(flags.name),
        tags=dict(map(_tag_of, flags.tag)),
        hosts=_hosts_text(flags),
        verbose=flags.verbose,
    )


def poll_timeout(settings: Settings) -> float:
    """Seconds that one run of a discovery script may take.

    The first poll must have ended before --start-timeout is over.
    """
    return min(MAX_POLL_TIMEOUT, settings.start_timeout * 2 / 3)


def _settings_of(flags: argparse.Namespace, stall_limits: Mapping[str, float]) -> Settings:
    if flags.np is None:
        raise UsageError("-np is missing: give the number of workers to start with, for example -np 2")
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
            cooldown_range=None if flags.cooldown_range is None else tuple(flags.cooldown_range),
        )
    except ValueError as error:
        raise UsageError(str(error)) from None


def _max_np_of(flags: argparse.Namespace) -> int:
    """As in horovodrun: no limit, if the hosts may change. An engine is asked for no more than -np."""
    if flags.max_np is not None:
        return int(flags.max_np)
    discovered = flags.host_discovery_script or flags.hosts_dial_in or flags.discovery
    return bounds.MAX_TOTAL_SLOTS if discovered and flags.broker is None else int(flags.np)


def _lease_of(flag: str, seconds: float) -> float:
    if seconds < MIN_LEASE:
        raise UsageError(f"{flag} is {seconds:g}: it must be at least {MIN_LEASE:g}, as machines can be busy")
    return seconds


def _stall_limits_of(texts: list[str]) -> dict[str, float]:
    try:
        return limits_of(texts)
    except ValueError as error:
        raise UsageError(f"--stall-timeout: {error}") from None


def _exit_timeout_of(seconds: float) -> float:
    if seconds <= 0:
        raise UsageError(f"--exit-timeout is {seconds:g}: it must be above 0")
    return seconds


def _command_of(words: list[str]) -> tuple[str, ...]:
    command = tuple(words[1:] if words[:1] == ["--"] else words)
    if not command or not command[0]:
        raise UsageError("the command is missing: add the program to run at the end, for example python train.py")
    for word in command:
        if wire_text(word, len(word) + 100) != word:
            raise UsageError(f"{word!r} in the command is not valid UTF-8: rename the file, or wrap it in a script")
    program = command[0]
    if shutil.which(program) is None:
        if os.sep not in program:
            raise UsageError(f"there is no command {program!r} on PATH")
        if not Path(program).exists():
            raise UsageError(f"there is no file {program!r} to run")
        raise UsageError(f"{program!r} is not an executable file: chmod +x it, or put its interpreter before it")
    return command


def _mode_of(wanted: str | None, command: tuple[str, ...]) -> ModeChoice:
    python = PythonCommand.of(command)
    if wanted is None:
        search = [Path(folder) for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
        return mode_of(python, Path.cwd(), search)
    mode = Mode(wanted)
    if mode is Mode.RESTART and command and python is None:
        raise UsageError(
            "--mode restart runs Python scripts: end with `python [flags] script.py ...` or `python -m module ...`"
        )
    return ModeChoice(mode, "--mode")


def _source_of(flags: argparse.Namespace, settings: Settings) -> HostSource:
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
    if flags.hosts_dial_in:
        return DialInHosts()
    if flags.host_discovery_script is not None:
        return HostDiscoveryScript(flags.host_discovery_script, flags.slots_per_host, poll_timeout(settings))
    if flags.discovery is not None:
        name, _, argument = flags.discovery.partition("=")
        try:
            make = plugin(SOURCES, name)
        except PluginError as error:
            raise UsageError(f"--discovery: {error}") from None
        try:
            source = make(SourceContext(argument, flags.slots_per_host, poll_timeout(settings)))
        except DiscoveryError as error:
            raise UsageError(f"--discovery {name}: {error}") from None
        return cast("HostSource", source)
    try:
        if flags.hosts is not None:
            hosts = parse_host_list(flags.hosts, flags.slots_per_host)
        elif flags.hostfile is not None:
            hosts = read_hostfile(Path(flags.hostfile), flags.slots_per_host)
        else:
            hosts = HostSet((Host("localhost", bounds.check_slots(settings.max_np, "--max-np on this machine alone")),))
    except bounds.OutOfBoundsError as error:
        raise UsageError(str(error)) from None
    except DiscoveryError as error:
        raise UsageError(f"-H {flags.hosts!r}: {error}" if flags.hosts is not None else str(error)) from None
    if hosts.total_slots < settings.min_np:
        needed = count_text(settings.min_np, "slot")
        why = f"the run needs {needed} (--min-np, by default -np): add slots, or give --min-np {hosts.total_slots}"
        raise UsageError(f"{chosen[0]} gives {hosts}; {why}")
    return FixedHosts(hosts)


def _hosts_text(flags: argparse.Namespace) -> str:
    if flags.hosts_dial_in:
        return "those that dial in"
    if flags.host_discovery_script is not None:
        return f"as {flags.host_discovery_script} prints them"
    if flags.discovery is not None:
        return f"as --discovery {flags.discovery} finds them"
    if flags.hostfile is not None:
        return f"as the file {flags.hostfile} lists them"
    return THIS_MACHINE if flags.hosts is None else flags.hosts


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
        raise UsageError(f"--launcher: {error}") from None


def _broker_of(flags: argparse.Namespace) -> BrokerChoice | None:
    if flags.broker is None:
        return None
    name, _, argument = flags.broker.partition("=")
    try:
        return BrokerChoice(plugin(BROKERS, name), argument, flags.slots_per_host)
    except PluginError as error:
        raise UsageError(f"--broker: {error}") from None


def _ssh_of(flags: argparse.Namespace) -> SshOptions:
    if flags.ssh_port is not None and not 0 < flags.ssh_port < 65536:
        raise UsageError(f"--ssh-port is {flags.ssh_port}: ports lie between 1 and 65535")
    if flags.ssh_identity_file is None:
        return SshOptions(flags.ssh_port)
    if error := identity_error(flags.ssh_identity_file):
        raise UsageError(f"--ssh-identity-file: {error}")
    return SshOptions(flags.ssh_port, str(Path(flags.ssh_identity_file).expanduser()))


def _port_of(port: int | None) -> int:
    if port is not None and not 0 <= port < 65536:
        raise UsageError(f"--port is {port}: ports lie between 1 and 65535")
    return port or 0


def _dial_in_of(flags: argparse.Namespace) -> Path | None:
    if flags.hosts_dial_in and flags.credentials is None:
        raise UsageError(
            "--hosts-dial-in needs --credentials FILE: the file is written for the agents of these hosts to read"
        )
    if flags.credentials is not None and not flags.hosts_dial_in:
        raise UsageError("--credentials is for hosts that dial in: give --hosts-dial-in, too")
    return _new_file_of("--credentials", flags.credentials)


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


def _folder_of(flag: str, name: str | None) -> str:
    if name is None:
        return ""
    if not name or (Path(name).exists() and not Path(name).is_dir()):
        raise UsageError(f"{flag} {name!r} is not a folder: give one, or a name that does not exist yet")
    return str(Path(name).absolute())


def _logs_of(flags: argparse.Namespace, mode: ModeChoice) -> WorkerLogs | None:
    given = {
        "--log-dir": flags.log_dir,
        "--redirects": flags.redirects,
        "--tee": flags.tee,
        "--local-ranks-filter": flags.local_ranks_filter,
    }
    first = next((flag for flag, text in given.items() if text is not None), None)
    if first is None:
        return None
    if mode.mode is not Mode.RESTART:
        raise UsageError(
            f"{first} is for restart mode, in which a worker has one local rank: give --output-filename instead, or "
            "--mode restart"
        )
    if flags.output_filename is not None:
        raise UsageError(f"--output-filename and {first} both define where output goes: give only one of them")
    return WorkerLogs(
        _folder_of("--log-dir", flags.log_dir),
        _read("--redirects", flags.redirects, StreamChoice.of, StreamChoice()),
        _read("--tee", flags.tee, StreamChoice.of, StreamChoice()),
        _read("--local-ranks-filter", flags.local_ranks_filter, local_ranks, ()),
    )


def _read(flag: str, text: str | None, reader: Callable[[str], Judged], default: Judged) -> Judged:
    try:
        return default if text is None else reader(text)
    except ValueError as error:
        raise UsageError(f"{flag}: {error}") from None


def _metrics_of(port: int | None, address: str | None) -> tuple[str, int] | None:
    if port is None:
        if address is not None:
            raise UsageError("--metrics-address needs --metrics-port")
        return None
    if not 0 <= port < 65536:
        raise UsageError(f"--metrics-port is {port}: ports lie between 1 and 65535, and 0 is any free port")
    if address == "":
        raise UsageError("--metrics-address is empty: give an address of this machine, or 0.0.0.0 for all of them")
    return address or DEFAULT_METRICS_ADDRESS, port


def _event_log_of(name: str | None) -> Path | None:
    if name is None:
        return None
    path = Path(name).absolute()
    try:
        os.close(open_private(path, os.O_APPEND))
    except OSError as error:
        raise UsageError(f"--event-log {name!r} cannot be written: {error.strerror}") from None
    return path


def _name_of(name: str | None) -> str:
    if name is not None and not 0 < len(name) <= MAX_NAME_LENGTH:
        raise UsageError(f"--name is {len(name)} characters long: give 1 to {MAX_NAME_LENGTH}")
    return name or ""


def _tag_of(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise UsageError(f"--tag {text!r}: give NAME=VALUE")
    if len(text) > MAX_NAME_LENGTH:
        raise UsageError(f"--tag {name[:20]}...: it has {len(text)} characters, more than {MAX_NAME_LENGTH}")
    return name, value


def _records_of(flags: argparse.Namespace, environ: Mapping[str, str]) -> Path | None:
    if flags.records is not None and flags.no_records:
        raise UsageError("--records and --no-records exclude each other: give only one of them")
    if flags.no_records:
        return None
    if flags.records is None:
        try:
            return default_root(environ)
        except RuntimeError:  # a user without a home
            return None
    if not flags.records:
        raise UsageError("--records '' is no folder: name one, or give --no-records")
    return Path(flags.records).absolute()
