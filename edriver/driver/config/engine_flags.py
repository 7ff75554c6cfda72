"""`--slurm` and the like: short forms that pick the host source, the launcher and the broker of one engine.

These are entry points, as those of --discovery, --launcher and --broker: an engine is imported once its flag is given.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from edriver.driver.config.flag import Flag
from edriver.driver.config.usage_error import UsageError
from edriver.system.private_files import make_private
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


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine, which owns the machines.

    Attributes:
        flag: its flag.
        attribute: the attribute in which argparse stores the flag's value.
        hosts: a description of its hosts.
        meaning: returns the values of other flags that it implies, by their attributes.
        details: the flags that belong to it, by their attributes.
        dials_in: whether its agents dial in, also if hosts_dial_in is not set, because it provides the host source.
    """

    flag: str
    attribute: str
    hosts: str
    meaning: Callable[[argparse.Namespace], dict[str, Any]]
    details: tuple[tuple[str, str], ...] = ()
    dials_in: bool = False


FLAGS: Final = (
    Flag(
        "--slurm",
        action="store_const",
        const="",
        help="the nodes of the Slurm allocation that this runs in; agents are steps of its job",
    ),
    Flag(
        "--slurm-partition",
        metavar="NAME",
        help="one-node jobs that the run submits to this partition of Slurm, as many as it can use, each of "
        "--slots-per-host workers",
    ),
    Flag(
        "--slurm-args",
        metavar="ARGS",
        help="with --slurm-partition: more arguments for sbatch: --slurm-args='--gpus-per-node=8 --time=4:00:00'",
    ),
    Flag(
        "--ray",
        nargs="?",
        const="",
        metavar="ADDRESS",
        help="the nodes of a Ray cluster, by default of the one that runs here; agents are Ray actors",
    ),
    Flag(
        "--ray-resources",
        metavar="NAME=AMOUNT,...",
        help="with --ray: the resources that a worker holds (default: GPU=1 if the cluster has any, else CPU=1)",
    ),
    Flag(
        "--kubernetes",
        metavar="KIND/NAME",
        help="agents in the pods of this job, statefulset, or jobset (jobset/NAME/JOB) of the cluster that the driver "
        "runs in, as `edriver kubernetes manifest` prints them",
    ),
)
"""The flags of the engines, as `edriver` has them."""


def _slurm(_: argparse.Namespace) -> dict[str, Any]:
    return {"discovery": "slurm", "launcher": "slurm"}


def _slurm_jobs(flags: argparse.Namespace) -> dict[str, Any]:
    arguments = flags.slurm_args or ""
    try:
        shlex.split(arguments)
    except ValueError as error:
        raise UsageError(f"--slurm-args: {error}") from None
    broker = f"slurm={flags.slurm_partition} {arguments}"
    return {"hosts_dial_in": True, "credentials": flags.credentials or str(_credentials()), "broker": broker}


def _ray(flags: argparse.Namespace) -> dict[str, Any]:
    if flags.ray and ":" not in flags.ray and flags.ray != "auto":
        raise UsageError(
            f"--ray {flags.ray!r} is not the address of a Ray cluster (HOST:PORT or auto): if it is the command, write "
            "--ray auto before it"
        )
    argument = ",".join(filter(None, (flags.ray, flags.ray_resources)))
    return {"discovery": f"ray={argument}", "launcher": "ray", "broker": "ray"}


def _kubernetes(flags: argparse.Namespace) -> dict[str, Any]:
    named = f"kubernetes={flags.kubernetes}"
    return {"discovery": named, "launcher": "kubernetes", "broker": named}


ENGINES: Final = (
    Engine("--slurm", "slurm", "the nodes of the Slurm allocation", _slurm),
    Engine(
        "--slurm-partition",
        "slurm_partition",
        "jobs that it submits to Slurm",
        _slurm_jobs,
        details=(("slurm_args", "--slurm-args"),),
    ),
    Engine(
        "--ray",
        "ray",
        "the nodes of a Ray cluster",
        _ray,
        details=(("ray_resources", "--ray-resources"),),
    ),
    Engine("--kubernetes", "kubernetes", "the pods of a Kubernetes cluster", _kubernetes, dials_in=True),
)


def with_engine(flags: argparse.Namespace) -> argparse.Namespace:
    """The flags, with those that an engine implies; `engine` is the engine itself, or None.

    Raises:
        UsageError: they name two engines, an engine and hosts, or an engine's details without it; or they cannot be
            read.
    """
    named = [engine for engine in ENGINES if getattr(flags, engine.attribute) is not None]
    for engine in ENGINES:
        for attribute, flag in engine.details:
            if engine not in named and getattr(flags, attribute) is not None:
                raise UsageError(f"{flag} belongs to {engine.flag}: give {engine.flag}, too")
    if not named:
        return argparse.Namespace(**vars(flags), engine=None)
    others = [engine.flag for engine in named[1:]]
    others += [flag for name, flag in HOST_FLAGS.items() if getattr(flags, name)]
    if others:
        raise UsageError(f"{named[0].flag} and {others[0]} both define where workers run: give only one of them")
    return argparse.Namespace(**{**vars(flags), **named[0].meaning(flags), "engine": named[0]})


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


def _credentials() -> Path:
    """A file in this user's home, which the nodes share.

    Raises:
        UsageError: the home is not known, or the folder cannot be made.
    """
    try:
        folder = default_root(os.environ)
        make_private(folder)
    except (RuntimeError, OSError) as error:
        raise UsageError(f"there is no folder for the credentials ({error}): give --credentials FILE") from None
    return folder / f"agents-{secrets.token_hex(4)}.json"
