"""`edriver ... --explain`: every setting of a run with its origin, and every bound that follows. Nothing is started.

What is shown is read from where the driver itself reads it: the judged options, and the constants of its modules.
"""

from __future__ import annotations

import argparse
import math
import os
import shlex
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from edriver.driver.agents import admission, periods, registry
from edriver.driver.config import options
from edriver.driver.config.options import RunOptions, poll_timeout
from edriver.driver.config.training_script import source_of_sharded_state
from edriver.driver.feeds import broker_feed, discovery_feed
from edriver.driver.launch import local
from edriver.driver.observe.console import progress_lines
from edriver.driver.observe.metrics import limits as metrics_limits
from edriver.driver.observe.records import recorder, source_commit
from edriver.driver.run import core_loop, shutdown, stop_requests
from edriver.driver.services import status
from edriver.model import settings
from edriver.model.limits import MAX_TOTAL_SLOTS
from edriver.model.stall_limits import collective_timeout, limits_of
from edriver.system import ssh_client
from edriver.wire import guarded_server, health_port

FLAG_ORIGIN, DEFAULT_ORIGIN, FIXED_ORIGIN = "flag", "default", "fixed"
"""Origins, beside those that say what a value was derived from."""

OMITTED_FLAGS: Final = frozenset({"help", "version", "print_completion", "explain", "command"})
"""What the parser takes that is not a setting; the command is shown by itself."""

TABLE_WIDTH: Final = 100
_NAME_WIDTH, _VALUE_WIDTH = 38, 31


@dataclass(frozen=True, slots=True)
class Bound:
    """A constant of the driver.

    Attributes:
        module: in which it stands,
        name: under which name.
        description: what it bounds.
    """

    module: ModuleType
    name: str
    description: str

    @property
    def value(self) -> Any:
        """The constant, in seconds; a pair is a range."""
        return getattr(self.module, self.name)


DRIVER_BOUNDS: Final = (
    Bound(discovery_feed, "POLL_INTERVAL", "discovery is polled every"),
    Bound(discovery_feed, "CONFIRM_INTERVAL", "and, once an answer lacks a host that is used, after"),
    Bound(broker_feed, "RECONCILE_INTERVAL", "a broker is called every"),
    Bound(broker_feed, "RECONCILE_TIMEOUT", "a broker may take to answer"),
    Bound(broker_feed, "CLOSE_TIMEOUT", "and to give everything back at the end"),
    Bound(core_loop, "SNAPSHOT_DELAY", "the journal gets a snapshot after an order within"),
    Bound(core_loop, "SNAPSHOT_PATIENCE", "and, while events keep coming, within"),
    Bound(source_commit, "GIT_TIMEOUT", "git may take to answer"),
    Bound(registry, "AGENT_LEASE", "an agent may be silent for"),
    Bound(registry, "HEARTBEAT_INTERVAL", "an agent sends a heartbeat every"),
    Bound(periods, "LARGE_RUN_PERIOD", "and in a run of more than 50 agents, every"),
    Bound(registry, "BOOT_LEASE", "an agent may take to start"),
    Bound(admission, "ARRIVAL_BOUND", "a host that dials in waits to be admitted for"),
    Bound(ssh_client, "CONNECT_TIMEOUT", "ssh may take to connect"),
    Bound(local, "RESOLVE_TIMEOUT", "a host's name may take to resolve"),
    Bound(guarded_server, "HANDSHAKE_TIMEOUT", "a caller's TLS handshake may take"),
    Bound(guarded_server, "IDLE_TIMEOUT", "a connection may be idle for"),
    Bound(stop_requests, "COPY_WINDOW", "signals after the first one to stop are copies of it for"),
    Bound(shutdown, "SHUTDOWN_GRACE", "workers may take to end after SIGTERM"),
    Bound(shutdown, "EXIT_BOUND", "and their agent, after them"),
    Bound(shutdown, "QUICK_EXIT_BOUND", "both, after a second Ctrl-C"),
    Bound(progress_lines, "PROGRESS_PERIOD", "progress is read every"),
    Bound(progress_lines, "PROGRESS_LINE_PERIOD", "a line about it is printed every"),
    Bound(status, "PROGRESS_PERIOD", "watchers receive progress every"),
    Bound(status, "MAX_WATCH_WAIT", "a watcher looks for events at least every"),
    Bound(guarded_server, "AUTHENTICATION_TIMEOUT", "a caller at the TCP port may take to show its token"),
    Bound(health_port, "HANDSHAKE_TIMEOUT", "a probe's handshake at the health port may take"),
    Bound(health_port, "IDLE_TIMEOUT", "and its connection may be idle for"),
    Bound(metrics_limits, "ANSWER_TIMEOUT", "the driver may take to answer Prometheus"),
    Bound(metrics_limits, "IDLE_TIMEOUT", "a caller of the metrics may be silent for"),
    Bound(metrics_limits, "REQUEST_TIMEOUT", "and may take for a request"),
    Bound(recorder, "RETRY_INTERVAL", "failed writes of records are repeated every"),
    Bound(recorder, "PROGRESS_INTERVALS", "progress is recorded every"),
    Bound(recorder, "WRITE_DELAY", "events are recorded within"),
    Bound(recorder, "MAX_WRITE_DELAY", "and, while more keep coming, within"),
    Bound(recorder, "CLOSE_TIMEOUT", "the end of a run waits for its records for"),
)
"""The driver's fixed times."""

SETTING_NAMES: Final[Mapping[str, str]] = {
    "preemption_limit": "maximum number of preemptions",
    "resize_limit": "maximum number of resizes",
    "join_window": "new workers wait for one another for",
    "rejoin_timeout": "a survivor may take to be ready",
    "newcomer_delay": "new workers start after a round's start by",
    "report_timeout": "a member may take to answer",
    "boundary_timeout": "and then to reach the boundary",
    "uneven_steps_timeout": "and to wait for members that are done",
    "long_work_timeout": "work that stalls again at the same place may take",
    "idle_timeout": "a script may be idle, once the others are done, for",
    "wake_window": "suspects are spared, after one wakes, for",
    "leave_grace": "a worker may take to leave",
    "failure_window": "failures count against a slot for",
}
"""What Settings has beside what flags set."""


def explanation(parser: argparse.ArgumentParser, arguments: Sequence[str], judged: RunOptions) -> str:
    """All of it, grouped as --help is.

    Args:
        parser: the flags there are.
        arguments: the command line.
        judged: what became of it.
    """
    flags, _ = parser.parse_known_args(arguments)
    given = given_flags(parser, arguments)
    parts = []
    for group in parser._action_groups:
        rows = [
            (_flag_text(action), *value_of(action.dest, flags, judged, given))
            for action in group._group_actions
            if action.dest not in OMITTED_FLAGS
        ]
        if rows:
            parts.append([f"{group.title}:", *_table(rows)])
    parts.append(["state:", *_table([("seal before an optimizer's step", *_seal(judged))])])
    parts.append(["bounds:", *_table(bounds_of(judged, flags, given))])
    command = shlex.join(judged.command) if judged.command else "none given (a run needs one)"
    return "\n".join([f"command: {command}", *(line for part in parts for line in ("", *part))])


def given_flags(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> frozenset[str]:
    """The flags (argparse's dest) that the command line names, also where they repeat a default."""
    names = vars(parser.parse_known_args([])[0])
    # Argparse sets a default where the namespace has no such name yet; what a flag sets is never None.
    bare, _ = parser.parse_known_args(arguments, argparse.Namespace(**dict.fromkeys(names)))
    return frozenset(name for name, value in vars(bare).items() if value is not None)


def value_of(name: str, flags: argparse.Namespace, judged: RunOptions, given: frozenset[str]) -> tuple[str, str]:
    """A setting's value and its origin, in words."""
    if name in given:
        return _DERIVED_VALUES[name](judged)[0] if name in _RESOLVED_SETTINGS else _text(
            getattr(flags, name)
        ), FLAG_ORIGIN
    if variable := flags.variables.get(name):
        return _text(getattr(flags, name)), f"derived: from {variable}"
    return _DERIVED_VALUES[name](judged) if name in _DERIVED_VALUES else (_text(getattr(flags, name)), DEFAULT_ORIGIN)


def bounds_of(judged: RunOptions, flags: argparse.Namespace, given: frozenset[str]) -> Iterator[tuple[str, str, str]]:
    """Each bound: in words, its value, its origin."""
    limits, named = judged.stall_limits, limits_of(flags.stall_timeout, base={})
    for phase, seconds in limits.items():
        origin = "derived: from --stall-timeout" if phase in named else DEFAULT_ORIGIN
        yield f"a worker may take in phase {phase}", _limit_text(seconds), origin
    yield "a collective may take", f"{collective_timeout(limits):g} s", "derived: from --stall-timeout"
    seconds = poll_timeout(judged.settings)
    short = seconds < options.MAX_POLL_TIMEOUT
    yield "the discovery script may take", f"{seconds:g} s", "derived: from --start-timeout" if short else FIXED_ORIGIN
    yield "a worker computes with", *_threads_of(os.environ)
    low_high = judged.settings.cooldown_range
    for place, usual in (("slot", settings.SLOT_COOLDOWN), ("host", settings.HOST_COOLDOWN)):
        of_flag = "cooldown_range" in given
        yield (
            f"cooldown of a {place}",
            _text(low_high or usual),
            "derived: from --cooldown-range" if of_flag else FIXED_ORIGIN,
        )
    for name, description in SETTING_NAMES.items():
        value = getattr(judged.settings, name)
        derived = name in ("boundary_timeout", "idle_timeout", "long_work_timeout", "report_timeout")
        origin = "derived: from --stall-timeout" if derived else FIXED_ORIGIN
        yield description, "no limit" if value in (None, math.inf) else f"{value:g} s", origin
    for bound in DRIVER_BOUNDS:
        yield bound.description, f"{_text(bound.value)}{'' if isinstance(bound.value, tuple) else ' s'}", FIXED_ORIGIN


def _seal(judged: RunOptions) -> tuple[str, str]:
    """Whether members wait for each other before an optimizer's step: edriver.ShardedState has them do so."""
    if not judged.mode.mode.members_survive:
        return "none", "derived: from restart mode"
    if source := source_of_sharded_state(judged.command, Path.cwd(), options.python_path()):
        return f"on: ShardedState in {source.name}", "derived: from command"
    return "only with edriver.ShardedState", DEFAULT_ORIGIN


def _threads_of(environ: Mapping[str, str]) -> tuple[str, str]:
    if count := environ.get("OMP_NUM_THREADS"):
        return f"{count} threads", "derived: from OMP_NUM_THREADS"
    return (
        f"1 thread; on a machine with one slot to use, all processors ({len(os.sched_getaffinity(0))} here)",
        DEFAULT_ORIGIN,
    )


def _records(judged: RunOptions) -> tuple[str, str]:
    if judged.records is None:
        return "none", "derived: from --no-records"
    of_environment = Path(os.environ.get("XDG_STATE_HOME", "")).is_absolute()
    return f"{judged.records}/RUN_ID", f"derived: from {'XDG_STATE_HOME' if of_environment else 'HOME'}"


def _hosts(judged: RunOptions) -> tuple[str, str]:
    if judged.hosts == options.THIS_MACHINE:
        return f"localhost:{judged.settings.max_np}", "derived: from --max-np"
    return "none", DEFAULT_ORIGIN


_DERIVED_VALUES: Final[Mapping[str, Callable[[RunOptions], tuple[str, str]]]] = {
    "np": lambda judged: (str(judged.settings.np), "derived: from the hosts' slots"),
    "slots_per_host": lambda _: ("1", DEFAULT_ORIGIN),
    "min_np": lambda judged: (str(judged.settings.min_np), "derived: from -np"),
    "max_np": lambda judged: (
        ("no limit", DEFAULT_ORIGIN)
        if judged.settings.max_np == MAX_TOTAL_SLOTS
        else (str(judged.settings.max_np), "derived: from -np")
    ),
    "mode": lambda judged: (judged.mode.mode.value, "derived: from command"),
    "hosts": _hosts,
    "launcher": lambda _: ("chosen for each host", DEFAULT_ORIGIN),
    "port": lambda _: ("any free port", DEFAULT_ORIGIN),
    "ssh_port": lambda _: ("as ssh is configured", DEFAULT_ORIGIN),
    "ssh_identity_file": lambda _: ("as ssh is configured", DEFAULT_ORIGIN),
    "network_interface": lambda _: ("by routing", DEFAULT_ORIGIN),
    "stall_timeout": lambda judged: (
        ", ".join(f"{phase} {_limit_text(seconds)}" for phase, seconds in judged.stall_limits.items()),
        DEFAULT_ORIGIN,
    ),
    "reset_limit": lambda _: ("no limit", DEFAULT_ORIGIN),
    "reset_window": lambda _: ("the whole run", DEFAULT_ORIGIN),
    "cooldown_range": lambda _: (
        f"slot: 0, then {_text(settings.SLOT_COOLDOWN)}; host: {_text(settings.HOST_COOLDOWN)}",
        DEFAULT_ORIGIN,
    ),
    "records": _records,
    "replica_size": lambda judged: (
        "all"
        if judged.settings.one_replica
        else "host"
        if judged.settings.replica_size == settings.WHOLE_HOSTS
        else str(judged.settings.replica_size),
        DEFAULT_ORIGIN,
    ),
}
"""Settings whose value, if no flag says it, is not the parser's default."""

_RESOLVED_SETTINGS: Final = frozenset({"np", "records", "replica_size", "stall_timeout"})
"""Settings of which the judged value says more than the flag's words."""


def _flag_text(action: argparse.Action) -> str:
    return ", ".join(action.option_strings)


def _limit_text(seconds: float) -> str:
    return f"{seconds:g} s" if seconds else "no limit"


def _text(value: Any) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return "yes" if value else "no"
        case float() | int():
            return f"{value:g}"
        case (low, high):
            return f"{low:g} to {high:g} s"
    return str(value)


def _table(rows: Iterable[tuple[str, str, str]]) -> Iterator[str]:
    """Three columns within WIDTH; a value that is too long for its own continues below."""
    for name, value, origin in rows:
        left = f"  {name}"
        if len(left) >= _NAME_WIDTH:
            yield left
            left = ""
        if len(value) < _VALUE_WIDTH:
            yield f"{left:<{_NAME_WIDTH}}{value:<{_VALUE_WIDTH}}{origin}"
            continue
        first, *more = textwrap.wrap(value, TABLE_WIDTH - _NAME_WIDTH - 1)
        yield f"{left:<{_NAME_WIDTH}}{first}"
        yield from (f"{'':<{_NAME_WIDTH}}{line}" for line in more)
        yield f"{'':<{_NAME_WIDTH + _VALUE_WIDTH}}{origin}"
