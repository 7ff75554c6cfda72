"""Short forms for engines: `--ray ADDRESS` picks the host source, the launcher and the broker of that name."""

from __future__ import annotations

import argparse
from typing import Final

ENGINES: Final = ("ray",)
"""The engines: each is the name of its flag, its host source, its launcher and its broker."""


def add_engine_flags(group: argparse._ArgumentGroup) -> None:
    """The flags."""
    group.add_argument(
        "--ray",
        nargs="?",
        const="",
        metavar="ADDRESS",
        help="use the nodes of a Ray cluster, by default of the one that runs here; agents are Ray actors",
    )
    group.add_argument(
        "--ray-resources",
        metavar="NAME=AMOUNT,...",
        help="with --ray: the resources that a worker holds (default: GPU=1 if the cluster has any, else CPU=1)",
    )


def _conflict(flags: argparse.Namespace) -> str:
    """Why an engine's flags cannot be used with the others; empty: they can."""
    engines = [f"--{name}" for name in ENGINES if getattr(flags, name) is not None]
    others = {
        "-H": flags.hosts,
        "--hostfile": flags.hostfile,
        "--host-discovery-script": flags.host_discovery_script,
        "--hosts-dial-in": flags.hosts_dial_in or None,
        "--discovery": flags.discovery,
        "--launcher": flags.launcher,
        "--broker": flags.broker,
    }
    chosen = [*engines, *(flag for flag, value in others.items() if value is not None)]
    if engines and len(chosen) > 1:
        return f"{' and '.join(chosen)} both define where workers run: give only one of them"
    if flags.ray and ":" not in flags.ray and flags.ray != "auto":
        return (
            f"--ray {flags.ray!r} is not the address of a Ray cluster (HOST:PORT or auto): if it is "
            "the command, write --ray auto before it"
        )
    if flags.ray is None and flags.ray_resources is not None:
        return "--ray-resources needs --ray"
    return ""


def use_engine(flags: argparse.Namespace) -> str:
    """Put what an engine's short form stands for in its place; returns why it cannot be used, empty: it can."""
    if conflict := _conflict(flags):
        return conflict
    if flags.ray is not None:
        flags.discovery = "ray=" + ",".join(filter(None, (flags.ray, flags.ray_resources)))
        flags.launcher = flags.broker = "ray"
    return ""
