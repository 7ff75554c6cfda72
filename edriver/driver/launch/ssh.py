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
from typing import Final

from edriver.common.release import VERSION
from edriver.driver.launch.launcher import Bootstrap, LaunchContext
from edriver.driver.launch.watched import Watched
from edriver.system.child import Child
from edriver.system.ssh_client import OWN_FAILURE, SshOptions, own_failure
from edriver.text.phrases import exit_text

_log = logging.getLogger("edriver.driver")

LINES_KEPT: Final = 20
"""Of what ssh says on standard error, for the reason of its end."""


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
