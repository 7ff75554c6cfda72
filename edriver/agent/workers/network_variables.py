"""Variables that name network interfaces or devices which this host does not have: those of another machine.

torch fails on such a name again in each round, in words that name neither the variable nor what there is.
"""

from __future__ import annotations

import itertools
import logging
import re
import socket
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

logger = logging.getLogger("edriver.agent")

_ANY_DEVICE: Final = "all"
"""What UCX_NET_DEVICES has by default."""

_INFINIBAND: Final = Path("/sys/class/infiniband")

_PYTHON: Final = re.compile(r"python[0-9.]*")


def stay_valid(command: Sequence[str]) -> bool:
    """Whether a command computes on the host that starts it: one other than Python may lead into a container, or a
    network namespace, with other interfaces.
    """
    if ("edriver.worker.restart", "--") in itertools.pairwise(command):
        return False  # a worker's own process, which starts another program
    return bool(command) and _PYTHON.fullmatch(Path(command[0]).name) is not None


def usable(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment without the variables that name what is not here; each is named in a warning."""
    interfaces = [name for _, name in socket.if_nameindex()]
    kept = dict(environment)
    for name in missing(environment, interfaces, infiniband_devices()):
        logger.warning(
            "%s=%s is left out: this host has no such network interface, only %s",
            name,
            kept.pop(name),
            ", ".join(sorted(interfaces)),
        )
    return kept


def infiniband_devices(folder: Path = _INFINIBAND) -> list[str]:
    """The InfiniBand devices of this host."""
    return [path.name for path in folder.iterdir()] if folder.is_dir() else []


def missing(environment: Mapping[str, str], interfaces: Collection[str], devices: Iterable[str]) -> list[str]:
    """The variables that name what is not there.

    Args:
        environment: what is looked at.
        interfaces: the network interfaces that there are,
        devices: and the InfiniBand devices.
    """
    known = {*interfaces, *devices, _ANY_DEVICE}
    gloo = set(environment.get("GLOO_SOCKET_IFNAME", "").split(","))
    ucx = {device.partition(":")[0] for device in environment.get("UCX_NET_DEVICES", "").split(",")}
    is_there = {
        "GLOO_SOCKET_IFNAME": gloo <= {*interfaces},
        "TP_SOCKET_IFNAME": environment.get("TP_SOCKET_IFNAME") in interfaces,
        "NCCL_SOCKET_IFNAME": _nccl_finds(environment.get("NCCL_SOCKET_IFNAME", ""), interfaces),
        "UCX_NET_DEVICES": bool(ucx & known),
    }
    return [name for name, found in is_there.items() if environment.get(name) and not found]


def _nccl_finds(text: str, interfaces: Collection[str]) -> bool:
    """Whether NCCL finds an interface: by beginnings of names, behind `=` by whole names, behind `^` by all others."""
    if text.startswith("^"):
        return True
    exact = text.startswith("=")
    names = text.removeprefix("=").split(",")
    return any(one == name if exact else one.startswith(name) for name in names for one in interfaces)
