"""`--slurm` and the like: short forms that pick the host source and the launcher of one engine."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Final

HOST_FLAGS: Final = {
    "hosts": "-H",
    "hostfile": "--hostfile",
    "host_discovery_script": "--host-discovery-script",
    "hosts_dial_in": "--hosts-dial-in",
    "discovery": "--discovery",
    "launcher": "--launcher",
}
"""The flags that an engine takes the place of."""


@dataclass(frozen=True, slots=True)
class Engine:
    """What owns the machines.

    Attributes:
        flag: its flag.
        source: the entry point of its host source,
        launcher: and of its launcher.
        hosts: its hosts, in words.
    """

    flag: str
    source: str
    launcher: str
    hosts: str

    @property
    def name(self) -> str:
        """Of its flag, where flags are parsed."""
        return self.flag.lstrip("-").replace("-", "_")


ENGINES: Final = (Engine("--slurm", "slurm", "slurm", "the nodes of the Slurm allocation"),)


def engine_of(flags: argparse.Namespace) -> Engine | None:
    """The engine that the flags name.

    Raises:
        ValueError: they name two, or an engine and hosts; a sentence for the operator.
    """
    named = [engine for engine in ENGINES if getattr(flags, engine.name)]
    if not named:
        return None
    others = [engine.flag for engine in named[1:]]
    others += [flag for name, flag in HOST_FLAGS.items() if getattr(flags, name)]
    if others:
        raise ValueError(f"{named[0].flag} and {others[0]} both define the hosts: give only one of them")
    return named[0]


def with_engine(flags: argparse.Namespace) -> argparse.Namespace:
    """The flags, with what an engine stands for; `engine` is the engine itself, or None.

    Raises:
        ValueError: as `engine_of`.
    """
    engine = engine_of(flags)
    meant = {"discovery": engine.source, "launcher": engine.launcher} if engine else {}
    return argparse.Namespace(**{**vars(flags), **meant, "engine": engine})
