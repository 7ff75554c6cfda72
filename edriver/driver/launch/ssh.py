"""Agents on other hosts, by OpenSSH's client: the user's own configuration says how each is reached.

One connection per host starts the agent. Its command line names nothing but the host: the invitation, with token and
environment, goes over standard input. The agent then dials the driver, and the connection only tells of its end.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from edriver.common.release import VERSION
from edriver.driver.launch.launcher import Bootstrap, LaunchContext
from edriver.driver.launch.watched import Watched
from edriver.system.child import Child
from edriver.text.phrases import exit_text

_log = logging.getLogger("edriver.driver")

CONNECT_BOUND: Final = 15
"""Seconds that ssh may take to reach a host."""

OWN_FAILURE: Final = 255
"""The exit code with which ssh says that it failed itself, or lost the connection."""

LINES_KEPT: Final = 20
"""Of what ssh says on standard error, for the reason of its end."""

_OPTIONS: Final = (
    "BatchMode=yes",  # nobody is there to be asked for a password
    "LogLevel=ERROR",  # banners are no errors
    f"ConnectTimeout={CONNECT_BOUND}",
    "ControlMaster=no",  # a connection for others to use would stay when the run is over
    "RemoteCommand=none",  # there is one already
)


@dataclass(frozen=True, slots=True)
class SshOptions:
    """What the operator says about ssh; all else is in the user's own configuration.

    Attributes:
        port: on which port sshd listens, on all hosts; None: as configured.
        identity_file: the private key; empty: as configured.
    """

    port: int | None = None
    identity_file: str = ""

    def command(self, host: str, remote: str) -> list[str]:
        """The command that runs a shell's command line on a host."""
        port = [] if self.port is None else ["-p", str(self.port)]
        identity = ["-i", self.identity_file, "-o", "IdentitiesOnly=yes"] if self.identity_file else []
        ours = [word for option in _OPTIONS for word in ("-o", option)]
        return ["ssh", *ours, "-T", "-x", "-a", *port, *identity, "--", host, remote]


def remote_command(python: str, host: str) -> str:
    """What the host's shell is to run: the agent, with its exit code, also where a signal ended it."""
    agent = shlex.join([python, "-P", "-m", "edriver.agent.main", "--host", host])
    return f"exec /bin/sh -c {shlex.quote(f'{agent}; exit $?')}"


class SshLauncher:
    """Starts agents on other hosts.

    Args:
        options: what the operator says about ssh.
        spawn: starts ssh for a host and gives it the invitation; its standard error is a pipe.
    """

    def __init__(self, options: SshOptions, spawn: Callable[[str, bytes], Child] | None = None) -> None:
        self._options = options
        self._spawn = spawn or self._ssh
        self._connections: dict[int, _Connection] = {}

    @classmethod
    def of(cls, context: LaunchContext) -> SshLauncher:
        """The launcher of a run."""
        return cls(SshOptions(context.ssh_port, context.ssh_identity_file))

    async def start(self, host: str, bootstrap: Bootstrap) -> None:
        """Start one.

        Raises:
            OSError: there is no ssh here, or no port can be opened.
        """
        process = self._spawn(host, await bootstrap.invitation())
        connection = _Connection(host, bootstrap.met)

        def reaped(code: int) -> None:
            del self._connections[bootstrap.agent_id]
            if bootstrap.met.is_set() and not connection.killed and (code == OWN_FAILURE or code < 0):  # ssh's own end
                _log.warning("host %s: the connection of ssh is gone; its agent goes on without", host)
            else:
                bootstrap.ended(failure(host, code, tuple(connection.said), VERSION))

        connection.child = Watched(process, reaped, connection.listen)
        self._connections[bootstrap.agent_id] = connection

    async def stop(self, agent_id: int, /) -> None:
        """Kill ssh. The agent ends when it finds that the driver knows it no more, or is silent."""
        if connection := self._connections.get(agent_id):
            connection.killed = True
            connection.child.kill()
            await connection.child.gone.wait()

    def watches(self, agent_id: int, /) -> bool:
        """Ssh tells, as long as its connection lasts."""
        return agent_id in self._connections

    def _ssh(self, host: str, invitation: bytes) -> Child:
        with os.fdopen(os.memfd_create("invitation"), "w+b") as letter:
            letter.write(invitation)
            letter.seek(0)
            return Child(
                self._options.command(host, remote_command(sys.executable, host)),
                stdin=letter,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )


class _Connection:
    """What ssh has said, and whether it was us who ended it."""

    child: Watched

    def __init__(self, host: str, met: asyncio.Event) -> None:
        self.said: deque[str] = deque(maxlen=LINES_KEPT)
        self.killed = False
        self._host = host
        self._met = met

    def listen(self, line: str) -> None:
        self.said.append(line)
        if self._met.is_set():  # what is said before that is part of the reason why it does not come
            _log.warning("host %s: %s", self._host, line)


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
        for sign, sentence in _OF_SSH.items():
            if sign in text:
                return f"{sentence.format(host=host)} (ssh: {last})"
        return f"ssh to it failed: {last or 'it gave no reason'}"
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


_OF_SSH: Final = {
    "Permission denied": (
        "it accepts none of this user's keys: see that `ssh {host} true` works without a question, or give "
        "--ssh-identity-file"
    ),
    "REMOTE HOST IDENTIFICATION HAS CHANGED": (
        "its host key is not the one in known_hosts: if that is right, ssh-keygen -R {host}, then connect once by hand"
    ),
    "Host key verification failed": (
        "its host key is not known here: connect once by hand (ssh {host}), or add it to known_hosts"
    ),
    "Could not resolve hostname": "its name is known neither to this machine nor to the ssh configuration",
    "Connection refused": "no sshd listens there: --ssh-port or the ssh configuration may name another port",
    "Too many authentication failures": "its sshd was offered too many keys: give --ssh-identity-file",
}
"""What ssh says (ssh(1), OpenSSH's sources), and what an operator can do about it."""


def identity_error(name: str) -> str:
    """What is wrong with an identity file; empty: nothing."""
    path = Path(name).expanduser()
    if not path.is_file():
        return f"there is no file {name!r}"
    if path.stat().st_mode & 0o077:
        return f"{name!r} can be read by others, and ssh then ignores it: chmod 600 it"
    return ""
