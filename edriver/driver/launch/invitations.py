"""What agents read on standard input: where the driver is, what to show it, and what of this machine they get."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from edriver.common.invitation import Invitation, at_port
from edriver.driver.launch.local import address_towards
from edriver.system.own_addresses import own_addresses
from edriver.system.runs import MARK

if TYPE_CHECKING:
    from edriver.driver.rpc.tcp_endpoint import Door

HINT_SECONDS: Final = 0.5
"""How long looking up the name of another machine may hold up its start once more: what comes of it helps only where
ssh goes by way of a third one."""

HOST_BOUND: Final = frozenset(
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
        *("CUDA_VISIBLE_DEVICES", "GLOO_SOCKET_IFNAME"),
        MARK,
    }
)
HOST_BOUND_PREFIXES: Final = ("SSH_", "XDG_")
"""What of the driver's environment is about its own host, and is not handed on to others."""


def travelling(environment: Mapping[str, str]) -> dict[str, str]:
    """What of the driver's environment other hosts get."""
    return {
        name: value
        for name, value in environment.items()
        if name not in HOST_BOUND and not name.startswith(HOST_BOUND_PREFIXES)
    }


class Invitations:
    """Writes the invitations of a run.

    Args:
        run_folder: gets a folder for each agent here.
        socket_path: where the driver listens for those.
        door: where all others come in.
        run_id: the run.
        environment: the driver's own.
        secret_of: what an agent has to show the driver.
        interface: through which hosts reach one another; empty: whichever leads there.
    """

    def __init__(
        self,
        run_folder: Path,
        socket_path: Path,
        door: Door,
        run_id: str,
        environment: Mapping[str, str],
        secret_of: Callable[[int], bytes],
        interface: str = "",
    ) -> None:
        self._run_folder = run_folder
        self._socket_path = socket_path
        self._door = door
        self._run_id = run_id
        self._environment = travelling(environment)
        self._secret_of = secret_of
        self._interface = interface

    async def __call__(self, host: str, agent_id: int, address: str | None) -> bytes:
        """Write one.

        Args:
            host: the agent's host.
            agent_id: the agent.
            address: by which others reach that host, if it is this machine; None: it is elsewhere.

        Raises:
            OSError: no folder can be made for it, or no port can be opened.
        """
        found = await self._elsewhere(host, agent_id) if address is None else self._here(host, agent_id, address)
        return found.to_json()

    def _here(self, host: str, agent_id: int, address: str) -> Invitation:
        folder = self._run_folder / f"agent-{agent_id}"
        folder.mkdir(mode=0o700)
        return Invitation(
            run_id=self._run_id,
            host=host,
            agent_id=agent_id,
            drivers=(f"unix:{self._socket_path}",),
            address=address,
            folder=str(folder),
            secret=self._secret_of(agent_id).hex(),
        )

    async def _elsewhere(self, host: str, agent_id: int) -> Invitation:
        await self._door.open()
        authority = self._door.authority
        # The agent itself puts the address from which ssh came before these.
        towards = await address_towards(host, HINT_SECONDS)
        # Its name may be one that only ssh knows, and ssh go by way of a third machine: then one of these leads here.
        anywhere = [*filter(None, (towards,)), *own_addresses(), socket.gethostname()]
        addresses = [self._door.address] if self._door.address else dict.fromkeys(anywhere)
        return Invitation(
            run_id=self._run_id,
            host=host,
            agent_id=agent_id,
            drivers=tuple(at_port(address, self._door.port) for address in addresses),
            authority=authority.certificate.decode() if authority else "",
            token=self._door.token,
            interface=self._interface,
            directory=str(Path.cwd()),
            environment=self._environment,
            secret=self._secret_of(agent_id).hex(),
        )
