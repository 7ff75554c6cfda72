"""The environment of a worker's process: how it finds its agent, and what is best unless the user knows better."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from pathlib import Path


def is_loopback(address: str) -> bool:
    """Whether an address is one that only this machine reaches."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def worker_environment(
    base: Mapping[str, str],
    *,
    run_id: str,
    worker_id: int,
    host: str,
    slot: int,
    address: str,
    socket_path: Path,
    ready_path: Path,
    life_path: Path,
) -> dict[str, str]:
    """The environment of a worker.

    Args:
        base: the agent's own environment.
        run_id: the run.
        worker_id: the worker.
        host: the name under which discovery knows this host.
        slot: the worker's slot.
        address: where this host's workers reach each other.
        socket_path: where the worker's notification service is to listen.
        ready_path: the datagram socket to which the worker sends its worker_id as text once it listens.
        life_path: the file of the lock that the worker holds while it lives.
    """
    # As torchrun does: several workers on one host that each take all its cores slow one another down.
    defaults = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    if is_loopback(address):
        # Gloo looks its interface up by the host's name, which may be one that the others' connections cannot reach.
        defaults["GLOO_SOCKET_IFNAME"] = "lo"
    ours = {
        "EDRIVER_RUN_ID": run_id,
        "EDRIVER_WORKER_ID": str(worker_id),
        "EDRIVER_HOST": host,
        "EDRIVER_SLOT": str(slot),
        "EDRIVER_ADDRESS": address,
        "EDRIVER_SOCKET": str(socket_path),
        "EDRIVER_READY": str(ready_path),
        "EDRIVER_LIFE": str(life_path),
        # A data loader forks; gRPC's handlers for that would wait for its threads.
        "GRPC_ENABLE_FORK_SUPPORT": "0",
    }
    return {**defaults, **base, **ours}
