"""The environment of a worker's process: how it finds its agent, and defaults that the user can override."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from edriver.calls.worker_process import WORKER_PID_VARIABLE
from edriver.common.run_clock import CLOCK_VARIABLE
from edriver.common.standby import IMPORTS_VARIABLE
from edriver.common.store_proxy import PROXY_VARIABLE
from edriver.model import stall_limits as limits
from edriver.system.own_addresses import is_loopback
from edriver.wire.grpc_log import with_users_level

MALLOC_DEFAULTS = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""malloc asks for huge pages, where the kernel gives them on request. A page fault for every 4 KiB of a model that a
newcomer receives takes longer than the transfer; and large tensors are faster in them ever after."""

NCCL_DEFAULTS = {
    # Else torch's watchdog ends the process when NCCL reports a lost peer, before the round could be given up in order.
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    # Else it asks the store every second whether to dump, and ends the process after it has.
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    # Else it sleeps four times this, 60 s, after an error, and the group cannot be torn down meanwhile.
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "0",
}
"""What torch's NCCL watchdog does by default about a lost peer is right for processes that end with it: it sleeps for a
minute when NCCL reports one, and then ends the process. The price of these: a collective that hangs while all members
live is not timed out. What the user has set stays."""

GLOO_DEFAULTS = {"GLOO_ENABLE_STORE_V2_API": "1"}
"""Gloo reads the addresses of all members of a group in one request of its store, rather than two for each member. The
variable is not documented (gloo/rendezvous/store.h); a Gloo that does not know it makes the many requests."""

READY_VARIABLE = "EDRIVER_READY"
"""The variable that names the agent's socket: all processes that a worker starts have it, and no others."""

HOROVOD_DEFAULTS = {"HOROVOD_ELASTIC": "1"}
"""What a script for Horovod may look at before hvd.init(), which sets HOROVOD_RANK and the like."""

ELASTIC_DEFAULTS = {**MALLOC_DEFAULTS, **GLOO_DEFAULTS, **NCCL_DEFAULTS, **HOROVOD_DEFAULTS}
"""What is best for processes that outlive their rounds."""

OTHER_LAUNCHERS_VARIABLES = frozenset(
    {
        *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT"),
        *("GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE"),
        *("LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE", "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_HOSTNAME"),
        *("HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE", "HOROVOD_CROSS_RANK", "HOROVOD_CROSS_SIZE"),
        "HOROVOD_ELASTIC",
        *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS", "SLURM_NPROCS"),
        *("SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE", "SLURM_TASK_PID", "SLURM_GTIDS"),
        *("MPI_LOCALRANKID", "MPI_LOCALNRANKS", "OMPI_UNIVERSE_SIZE", "FLUX_TASK_RANK", "FLUX_TASK_LOCAL_ID"),
        WORKER_PID_VARIABLE,  # of a run inside a worker of another
    }
)
OTHER_LAUNCHERS_PREFIXES = (
    *("TORCHELASTIC_", "SLURM_STEP", "OMPI_COMM_WORLD_", "PMI_", "PMIX_", "PALS_", "MV2_COMM_WORLD_"),
    "JSM_NAMESPACE_",
)
"""The variables by which torchrun, horovodrun, srun and mpirun describe a process's place. A shell may still have those
of another run, and an agent started by one of these tools has its own; scripts and libraries would believe them."""

OF_A_WORKER = frozenset(
    {
        *("EDRIVER_RUN_ID", "EDRIVER_WORKER_ID", "EDRIVER_HOST", "EDRIVER_SLOT", "EDRIVER_AGENT_PID"),
        *("EDRIVER_STORE", "EDRIVER_SOCKET", READY_VARIABLE, "EDRIVER_LIFE", "EDRIVER_TLS_FOLDER", PROXY_VARIABLE),
        *("EDRIVER_CHECKPOINTS", "EDRIVER_POSITION", "EDRIVER_REPLICA_SIZE", "EDRIVER_STALL_LIMITS", CLOCK_VARIABLE),
        *("EDRIVER_MODE", "EDRIVER_ADDRESS", "EDRIVER_ERROR_FILE", "EDRIVER_MAX_RESTARTS", IMPORTS_VARIABLE),
    }
)
"""What an agent sets for its workers, not each of them for each worker. A worker may start a run of its own, whose
agents then inherit these from the other run."""

_GPU_DEVICE_PATTERN = re.compile(r"nvidia\d+")


def cuda_devices(base: Mapping[str, str], devices: Path = Path("/dev")) -> list[str]:
    """The GPUs that this host's workers may use, in the form of CUDA_VISIBLE_DEVICES: the user's choice, else all.

    A GPU divided by MIG counts as one, unless the user names its instances. CUDA reads a choice up to the first name
    that is not a device: -1 hides all that follow.
    """
    if (chosen := base.get("CUDA_VISIBLE_DEVICES")) is not None:
        names = [name.strip() for name in chosen.split(",") if name.strip()]
        return list(itertools.takewhile(lambda name: not name.startswith("-"), names))
    return [
        str(number)
        for number in range(sum(bool(_GPU_DEVICE_PATTERN.fullmatch(path.name)) for path in devices.iterdir()))
    ]


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
    store_path: Path,
    agent_pid: int,
    tls_folder: Path | None = None,
    proxy_path: Path | None = None,
    checkpoints_path: Path | None = None,
    interface: str | None = None,
    devices: Sequence[str] = (),
    stall_limits: Mapping[str, float] | None = None,
    clock_ahead: float | None = None,
    script_defaults: Mapping[str, str] = ELASTIC_DEFAULTS,
    place_in_replica: tuple[int, int] | None = None,
) -> dict[str, str]:
    """The environment of a worker.

    Args:
        base: the agent's own environment; a worker gets it without what other launchers and other runs have set there.
        run_id: the run.
        worker_id: the worker.
        host: the name under which discovery knows this host.
        slot: the worker's slot.
        address: where this host's workers reach each other.
        socket_path: where the worker's notification service is to listen.
        ready_path: the datagram socket to which the worker sends its worker_id as text once it listens.
        life_path: the file of the lock that the worker holds while it lives.
        store_path: the unix socket of its store, if only this machine's workers are to reach it.
        agent_pid: the agent's process.
        tls_folder: the folder of what it shows the others (store_transport.py).
        proxy_path: where its agent has a proxy for the stores of other hosts; None: nowhere.
        checkpoints_path: where its host's checkpoint server listens, once a worker needs that; None: there is none.
        interface: the network interface that has the address, if it is known.
        devices: the host's GPUs. A slot always has the one with its number, independently of the rank of its worker; if
            there are more slots than GPUs, they share them in turn.
        stall_limits: seconds that each phase may last, by name; a missing one has no limit.
        clock_ahead: of the run's clock (RunClock); None: the worker reads its machine's.
        script_defaults: what else is set unless the user has.
        place_in_replica: a position in a replica, and the number of workers in one, for which the worker makes its
            model before its first round; None: it makes it then.
    """
    # As torchrun does: several workers on one host that each take all its cores slow one another down.
    defaults = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **script_defaults}
    # Gloo looks its interface up by the host's name, NCCL takes any: it may be one that the others cannot reach.
    if is_loopback(address):
        defaults["GLOO_SOCKET_IFNAME"] = "lo"
    elif interface:
        defaults |= {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": f"={interface}"}
    ours = {
        "EDRIVER_RUN_ID": run_id,
        "EDRIVER_WORKER_ID": str(worker_id),
        "EDRIVER_HOST": host,
        "EDRIVER_SLOT": str(slot),
        "EDRIVER_STORE": str(store_path) if is_loopback(address) else address,
        "EDRIVER_SOCKET": str(socket_path),
        READY_VARIABLE: str(ready_path),
        "EDRIVER_LIFE": str(life_path),
        "EDRIVER_AGENT_PID": str(agent_pid),
        # A data loader forks; gRPC's handlers for that would wait for its threads.
        "GRPC_ENABLE_FORK_SUPPORT": "0",
    }
    if "OMP_NUM_THREADS" not in base:
        ours["EDRIVER_OMP_DEFAULT"] = "1"
    if place_in_replica:
        ours["EDRIVER_POSITION"], ours["EDRIVER_REPLICA_SIZE"] = map(str, place_in_replica)
    if stall_limits:
        ours["EDRIVER_STALL_LIMITS"] = limits.text_of(stall_limits)
    if clock_ahead is not None:
        ours[CLOCK_VARIABLE] = repr(clock_ahead)
    if tls_folder:
        ours["EDRIVER_TLS_FOLDER"] = str(tls_folder)
    if proxy_path is not None:
        ours[PROXY_VARIABLE] = str(proxy_path)
    if checkpoints_path is not None:
        ours["EDRIVER_CHECKPOINTS"] = str(checkpoints_path)
    if devices:
        ours["CUDA_VISIBLE_DEVICES"] = devices[slot % len(devices)]
    kept = {
        name: value
        for name, value in with_users_level(base).items()
        if name not in OTHER_LAUNCHERS_VARIABLES | OF_A_WORKER and not name.startswith(OTHER_LAUNCHERS_PREFIXES)
    }
    return {**defaults, **kept, **ours}


def restart_environment(
    *, address: str, error_path: Path, imports_path: Path, max_restarts: int | None
) -> dict[str, str]:
    """The additional variables of a worker in restart mode.

    Args:
        address: the address at which this host's workers reach each other.
        error_path: the file to which torch's @record writes the exception that ended the script.
        imports_path: the file to which it writes the names of its imports, for the slot's next standby.
        max_restarts: the number of failures that the run survives; None: any number.
    """
    found = {
        "EDRIVER_MODE": "restart",
        "EDRIVER_ADDRESS": address,
        "EDRIVER_ERROR_FILE": str(error_path),
        IMPORTS_VARIABLE: str(imports_path),
    }
    if max_restarts is not None:
        found["EDRIVER_MAX_RESTARTS"] = str(max_restarts)
    return found
