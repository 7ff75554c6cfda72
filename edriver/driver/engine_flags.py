"""`--slurm` and the like: short forms that pick the host source, the launcher and the broker of one engine."""

from __future__ import annotations

import argparse
import os
import secrets
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from edriver.system.record_folder import default_root

HOST_FLAGS: Final = {
    "hosts": "-H",
    "hostfile": "--hostfile",
    "host_discovery_script": "--host-discovery-script",
    "hosts_dial_in": "--hosts-dial-in",
    "discovery": "--discovery",
    "launcher": "--launcher",
    "broker": "--broker",
}
"""The flags that an engine takes the place of."""


class UsageError(Exception):
    """The flags cannot be used as given; the message is one sentence for the operator."""


@dataclass(frozen=True, slots=True)
class Engine:
    """What owns the machines.

    Attributes:
        flag: its flag.
        hosts: its hosts, in words.
        source: the entry point of its host source,
        launcher: and of its launcher; empty: its hosts dial in.
        broker: the entry point of its broker; empty: it has none.
    """

    flag: str
    hosts: str
    source: str = ""
    launcher: str = ""
    broker: str = ""

    @property
    def name(self) -> str:
        """Of its flag, where flags are parsed."""
        return self.flag.lstrip("-").replace("-", "_")


ENGINES: Final = (
    Engine("--slurm", "the nodes of the Slurm allocation", source="slurm", launcher="slurm"),
    Engine("--slurm-partition", "jobs that it submits to Slurm", broker="slurm"),
)


def engine_of(flags: argparse.Namespace) -> Engine | None:
    """The engine that the flags name.

    Raises:
        UsageError: they name two, or an engine and hosts; a sentence for the operator.
    """
    if flags.slurm_args is not None and not flags.slurm_partition:
        raise UsageError("--slurm-args is for the jobs that edriver submits: give --slurm-partition, too")
    named = [engine for engine in ENGINES if getattr(flags, engine.name)]
    if not named:
        return None
    others = [engine.flag for engine in named[1:]]
    others += [flag for name, flag in HOST_FLAGS.items() if getattr(flags, name)]
    if others:
        raise UsageError(f"{named[0].flag} and {others[0]} both define the hosts: give only one of them")
    return named[0]


def with_engine(flags: argparse.Namespace) -> argparse.Namespace:
    """The flags, with what an engine stands for; `engine` is the engine itself, or None.

    Raises:
        UsageError: as `engine_of`.
    """
    engine = engine_of(flags)
    meant: dict[str, Any] = {}
    if engine and engine.broker:
        meant = {"hosts_dial_in": True, "credentials": flags.credentials or str(_credentials())}
        meant["broker"] = f"{engine.broker}={flags.slurm_partition} {_words(flags.slurm_args or '')}"
    elif engine:
        meant = {"discovery": engine.source, "launcher": engine.launcher}
    return argparse.Namespace(**{**vars(flags), **meant, "engine": engine})


def hosts_text(flags: argparse.Namespace) -> str:
    """Where the hosts come from, in words; empty: no flag says it."""
    if flags.engine is not None:
        return str(flags.engine.hosts)
    if flags.hosts_dial_in:
        return "those that dial in"
    if flags.host_discovery_script is not None:
        return f"as {flags.host_discovery_script} prints them"
    if flags.discovery is not None:
        return f"as --discovery {flags.discovery} finds them"
    if flags.hostfile is not None:
        return f"as the file {flags.hostfile} lists them"
    return flags.hosts or ""


def _words(arguments: str) -> str:
    """The arguments, if they can be split into words.

    Raises:
        UsageError: they cannot.
    """
    try:
        shlex.split(arguments)
    except ValueError as error:
        raise UsageError(f"--slurm-args: {error}") from None
    return arguments


def _credentials() -> Path:
    """A file in this user's home, which the nodes share.

    Raises:
        UsageError: the home is not known, or the folder cannot be made.
    """
    try:
        folder = default_root(os.environ)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (RuntimeError, OSError) as error:
        raise UsageError(f"there is no folder for the credentials ({error}): give --credentials FILE") from None
    return folder / f"agents-{secrets.token_hex(4)}.json"
