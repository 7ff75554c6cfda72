"""What the node table of a Ray cluster comes to as hosts and slots. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from edriver.model.hosts import Host, HostSet
from edriver.model.limits import MAX_HOST_NAME_LENGTH, MAX_HOST_SLOTS

AUTO_ADDRESS: Final = "auto"
"""The address that has Ray look for its cluster: RAY_ADDRESS, or the cluster that runs on this machine."""

_ADDRESS = re.compile(r"auto|(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+):[0-9]{1,5}")
_RESOURCE = re.compile(r"([A-Za-z0-9_.:/-]+)=([0-9]*\.?[0-9]+)")
_ID_CHARACTERS: Final = 8
_SMALLEST_SHARE: Final = 1e-4
"""Ray counts resources in steps of this size."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the cluster.

    Attributes:
        id: Ray's node id.
        name: Ray's node name, by default the node's IP address; several nodes may share one.
        alive: whether Ray counts it as alive.
        draining: whether Ray has been asked to drain it.
        total: all its resources, by name,
        available: and those that nothing holds.
        deadline: of a node that Ray drains, when it will be gone, in seconds since the epoch; 0: Ray does not say.
    """

    id: str
    name: str
    alive: bool
    draining: bool
    total: Mapping[str, float]
    available: Mapping[str, float]
    deadline: float = 0.0

    @property
    def host(self) -> str:
        """Its name as a host of the run: no other node has it, on the same machine either."""
        name = re.sub(r"[^A-Za-z0-9._-]", "-", self.name).lstrip(".-") or "node"
        return f"{name[: MAX_HOST_NAME_LENGTH - _ID_CHARACTERS - 1]}-{self.id[:_ID_CHARACTERS]}"


@dataclass(frozen=True, slots=True)
class RayArgument:
    """What follows `ray=` in --discovery: `ADDRESS,GPU=1,CPU=4`, each part optional.

    Attributes:
        address: where the cluster is.
        resources: what one worker holds, by name; empty: a GPU if the cluster has any, else a CPU.
    """

    address: str = AUTO_ADDRESS
    resources: Mapping[str, float] | None = None

    @classmethod
    def parse(cls, text: str) -> RayArgument:
        """Read it.

        Raises:
            ValueError: a part is neither an address nor a resource, or there are two addresses.
        """
        addresses: list[str] = []
        resources: dict[str, float] = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            if _ADDRESS.fullmatch(part):
                addresses.append(part)
            elif (found := _RESOURCE.fullmatch(part)) and float(found[2]) >= _SMALLEST_SHARE:
                resources[found[1]] = float(found[2])
            else:
                raise ValueError(
                    f"{part!r} is neither the address of a Ray cluster (HOST:PORT or auto) nor a "
                    "resource (NAME=AMOUNT, such as GPU=1)"
                )
        if len(addresses) > 1:
            raise ValueError(f"{' and '.join(addresses)}: give the address of one Ray cluster")
        return cls(addresses[0] if addresses else AUTO_ADDRESS, resources or None)


def default_resources(nodes: Iterable[Node]) -> dict[str, float]:
    """What one worker holds if the operator has not decided: a GPU if a living node has any, else a CPU."""
    return {"GPU" if any(node.alive and node.total.get("GPU", 0) >= 1 for node in nodes) else "CPU": 1.0}


def workers_that_fit(there: Mapping[str, float], resources: Mapping[str, float]) -> int:
    """The number of workers that fit into the available resources."""
    share = _SMALLEST_SHARE / 2  # 0.3 / 0.1 is less than 3
    return min(MAX_HOST_SLOTS, *(math.floor((there.get(name, 0) + share) / need) for name, need in resources.items()))


def hosts_of(
    nodes: Iterable[Node], resources: Mapping[str, float], held: Mapping[str, int], now: float = 0.0
) -> HostSet:
    """The hosts that workers can be placed on, and those that Ray drains by a deadline while the run holds slots there.

    Args:
        nodes: the node table.
        resources: what one worker holds.
        held: the slots that the run's own agents hold, by host.
        now: seconds since the epoch.
    """
    hosts = dict[str, Host]()
    for node in nodes:
        if not node.alive or (node.draining and not (node.deadline and held.get(node.host))):
            continue
        slots = held.get(node.host) or workers_that_fit(node.available, resources)
        hosts[node.host] = Host(node.host, slots, max(0.0, node.deadline - now) if node.draining else None)
    return HostSet(tuple(host for host in hosts.values() if host.slots))


def needed_of(hosts: HostSet, wanted: int, kept: Mapping[str, int]) -> HostSet:
    """Of the hosts that workers can be placed on, those that the run takes: no more than it can use.

    Args:
        hosts: the hosts.
        wanted: the total number of slots that the run can use.
        kept: the hosts that it continues to use, with the slots that it has taken there.
    """
    taken = {host.name: replace(host, slots=min(host.slots, kept[host.name])) for host in hosts if host.name in kept}
    left = wanted - sum(host.slots for host in taken.values())
    for host in hosts:
        if host.name not in taken and left > 0:
            taken[host.name] = replace(host, slots=min(host.slots, left))
            left -= taken[host.name].slots
    return HostSet(tuple(taken.values()))


def actor_options(resources: Mapping[str, float], workers: int) -> dict[str, object]:
    """The options with which an actor holds the resources of so many workers."""
    amounts = {name: amount * workers for name, amount in resources.items()}
    named = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
    options: dict[str, object] = {option: amounts.pop(name, 0) for name, option in named.items()}
    return {**options, "resources": amounts}
