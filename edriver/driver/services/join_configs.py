"""What agents read on standard input: where the driver is, what to show it, and what of this machine they get."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from edriver.common.join_config import JoinConfig, at_port
from edriver.driver.launch.local import address_towards
from edriver.system.own_addresses import own_addresses
from edriver.system.runs import RUN_FOLDER_VARIABLE

if TYPE_CHECKING:
    from edriver.driver.services.tcp_endpoint import TcpEndpoint

ADDRESS_HINT_TIMEOUT: Final = 0.5
"""How long looking up the name of another machine may hold up its start once more: what comes of it helps only where
ssh goes by way of a third one."""

HOST_SPECIFIC_VARIABLES: Final = frozenset(
    {
        *(
            "HOME",
            "HOST",
            "HOSTNAME",
            "LOGNAME",
            "MAIL",
            "OLDPWD",
            "PWD",
            "SHELL",
            "SHLVL",
            "TERM",
            "TMPDIR",
            "USER",
            "_",
        ),
        *("DBUS_SESSION_BUS_ADDRESS", "DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY", "GRPC_ENABLE_FORK_SUPPORT"),
        *("CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
        *("ZE_AFFINITY_MASK", "GLOO_SOCKET_IFNAME"),
        RUN_FOLDER_VARIABLE,
    }
)
HOST_SPECIFIC_PREFIXES: Final = (
    *("SSH_", "XDG_"),
    # Slurm's variables about a task's step and node; those about the job (SLURM_JOB_ID) are passed on
    *("SLURMD_", "SLURM_CPU_BIND", "SLURM_LAUNCH_", "SLURM_MEM_BIND", "SLURM_SRUN_", "SLURM_STEP", "SLURM_TOPOLOGY_"),
    *("SLURM_CPUS_ON_NODE", "SLURM_GPUS_ON_NODE", "SLURM_GTIDS", "SLURM_JOB_GPUS", "SLURM_LOCALID", "SLURM_NODEID"),
    *("SLURM_PROCID", "SLURM_TASK_PID", "PMI_", "PMIX_"),
)
"""The variables of the driver's environment that describe its host and are not passed on to other hosts."""


def portable_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """What of the driver's environment other hosts get."""
    return {
        name: value
        for name, value in environment.items()
        if name not in HOST_SPECIFIC_VARIABLES and not name.startswith(HOST_SPECIFIC_PREFIXES)
    }


class JoinConfigs:
    """Writes the join configs of a run.

    Args:
        run_folder: gets a folder for each agent here.
        socket_path: where the driver listens for those.
        endpoint: the TCP endpoint for all others.
        run_id: the run.
        environment: the driver's own.
        secret_of: what an agent has to show the driver.
        interface: through which hosts reach one another; empty: whichever leads there.
    """

    def __init__(
        self,
        run_folder: Path,
        socket_path: Path,
        endpoint: TcpEndpoint,
        run_id: str,
        environment: Mapping[str, str],
        secret_of: Callable[[int], bytes],
        interface: str = "",
    ) -> None:
        self._run_folder = run_folder
        self._socket_path = socket_path
        self._endpoint = endpoint
        self._run_id = run_id
        self._environment = portable_variables(environment)
        self._secret_of = secret_of
        self._interface = interface

    async def __call__(self, host: str, agent_id: int, address: str | None) -> bytes:
        """Write one.

        Args:
            host: the agent's host.
            agent_id: the agent.
            address: the address at which others reach that host, if it is this machine; None: it is another machine.

        Raises:
            OSError: no folder can be made for it, or no port can be opened.
        """
        found = await self._elsewhere(host, agent_id) if address is None else self._here(host, agent_id, address)
        return found.to_json()

    def _here(self, host: str, agent_id: int, address: str) -> JoinConfig:
        folder = self._run_folder / f"agent-{agent_id}"
        folder.mkdir(mode=0o700)
        return JoinConfig(
            run_id=self._run_id,
            host=host,
            agent_id=agent_id,
            drivers=(f"unix:{self._socket_path}",),
            address=address,
            folder=str(folder),
            secret=self._secret_of(agent_id).hex(),
        )

    async def _elsewhere(self, host: str, agent_id: int) -> JoinConfig:
        await self._endpoint.open()
        authority = self._endpoint.authority
        # The agent itself puts the address from which ssh came before these.
        towards = await address_towards(host, ADDRESS_HINT_TIMEOUT)
        # Its name may be one that only ssh knows, and ssh go by way of a third machine: then one of these leads here.
        anywhere = [*filter(None, (towards,)), *own_addresses(), socket.gethostname()]
        addresses = [self._endpoint.address] if self._endpoint.address else dict.fromkeys(anywhere)
        drivers = tuple(at_port(address, self._endpoint.port) for address in addresses)
        return JoinConfig(
            run_id=self._run_id,
            host=host,
            agent_id=agent_id,
            drivers=drivers,
            other_drivers=self._endpoint.other_drivers(*drivers),
            authority=authority.certificate.decode() if authority else "",
            token=self._endpoint.token,
            interface=self._interface,
            directory=str(Path.cwd()),
            environment=self._environment,
            secret=self._secret_of(agent_id).hex(),
        )
