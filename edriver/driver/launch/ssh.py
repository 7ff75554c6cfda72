"""Agents on other hosts, by OpenSSH's client: the user's own configuration says how each is reached.

One connection per host starts the agent. Its command line names nothing but the host: the invitation, with token and
environment, goes over standard input. The agent then dials the driver, and the connection only tells of its end.
"""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from edriver.common.invitation import Invitation, at_port
from edriver.driver.launch.local import address_towards, own_addresses
from edriver.system.child import Child
from edriver.system.runs import MARK
from edriver.system.ssh_client import OWN_FAILURE, SshOptions, own_failure
from edriver.text.phrases import exit_text

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


def remote_command(python: str, host: str) -> str:
    """What the host's shell is to run: the agent, with its exit code, also where a signal ended it."""
    agent = shlex.join([python, "-P", "-m", "edriver.agent.main", "--host", host])
    return f"exec /bin/sh -c {shlex.quote(f'{agent}; exit $?')}"


def travelling(environment: Mapping[str, str]) -> dict[str, str]:
    """What of the driver's environment other hosts get."""
    return {
        name: value
        for name, value in environment.items()
        if name not in HOST_BOUND and not name.startswith(HOST_BOUND_PREFIXES)
    }


class SshStart:
    """Starts agents on other hosts.

    Args:
        options: what the operator says about ssh.
        door: where they will come in.
        run_id: the run.
        environment: the driver's own.
        secret_of: what an agent has to show the driver.
        interface: through which hosts reach one another; empty: whichever leads there.
    """

    def __init__(
        self,
        options: SshOptions,
        door: Door,
        run_id: str,
        environment: Mapping[str, str],
        secret_of: Callable[[int], bytes],
        interface: str = "",
    ) -> None:
        self._secret_of = secret_of
        self._interface = interface
        self._options = options
        self._door = door
        self._run_id = run_id
        self._environment = travelling(environment)

    async def __call__(self, host: str, agent_id: int) -> Child:
        """Start one; returns the process of ssh.

        Raises:
            OSError: there is no ssh here, or no port can be opened.
        """
        await self._door.open()
        authority = self._door.authority
        # The agent itself puts the address from which ssh came before these.
        towards = await address_towards(host, HINT_SECONDS)
        # Its name may be one that only ssh knows, and ssh go by way of a third machine: then one of these leads here.
        anywhere = [*filter(None, (towards,)), *own_addresses(), socket.gethostname()]
        addresses = [self._door.address] if self._door.address else dict.fromkeys(anywhere)
        invitation = Invitation(
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
        return self._spawn(invitation)

    def _spawn(self, invitation: Invitation) -> Child:
        host = invitation.host
        with os.fdopen(os.memfd_create("invitation"), "w+b") as letter:
            letter.write(invitation.to_json())
            letter.seek(0)
            return Child(
                self._options.command(host, remote_command(sys.executable, host)),
                stdin=letter,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )


def failure(host: str, code: int, said: Sequence[str], version: str) -> str:
    """Why an agent that was started over ssh is not there, or no longer, and what to do about it.

    Args:
        host: the host.
        code: ssh's exit code: the agent's, or 255.
        said: the last lines on standard error, of ssh or of the agent.
        version: the driver's version.
    """
    text = "\n".join(said)
    last = next((line for line in reversed(said) if line.strip()), "")
    if code == OWN_FAILURE:
        return own_failure(host, said)
    if code < 0:
        return f"ssh {exit_text(code)}"
    if code in (126, 127):
        path = sys.executable
        return f"it has no Python that runs at {path}: edriver's has to be at the same path on all hosts ({last})"
    if "No module named edriver" in text or "No module named 'edriver" in text:
        return f"Python at {sys.executable} has no edriver there: pip install edriver=={version} on that host"
    # /bin/sh tells of a signal as 128 + its number.
    how = exit_text(128 - code) if code > 128 else exit_text(code)
    return f"its agent {how}" + (f": {last}" if last else "")
