"""Agents on other hosts, by OpenSSH's client and the user's own ssh configuration.

One connection per host starts the agent. Its command line names nothing but the host: the join config, with token and
environment, goes over standard input. The agent then connects to the driver; the ssh connection shows when it ends.

At most 64 agents are being started at a time (MAX_CONCURRENT_STARTS in agents.py), each with its own bound, so that a
host that never answers delays no other; nor does a name server: each name is looked up in a separate thread. The end
of ssh is the agent's end only if ssh returns the agent's exit code: where the connection alone has broken, the agent's
lease decides.
"""

from __future__ import annotations

import asyncio
import logging
import shlex
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence

from edriver.common.release import VERSION
from edriver.driver.launch.launcher import Bootstrap, LaunchContext
from edriver.driver.launch.watched import MAX_STDERR_LINES, WatchedProcess, standard_input
from edriver.system.child import Child
from edriver.system.ssh_client import SSH_FAILURE_CODE, SshOptions, own_failure
from edriver.text.phrases import exit_text

_log = logging.getLogger("edriver.driver")


def remote_command(python: str, host: str) -> str:
    """What the host's shell is to run: the agent, with its exit code, also where a signal ended it."""
    agent = shlex.join([python, "-P", "-m", "edriver.agent.main", "--host", host])
    return f"exec /bin/sh -c {shlex.quote(f'{agent}; exit $?')}"


class SshLauncher:
    """Starts agents on other hosts.

    Args:
        options: the operator's ssh options.
        spawn: starts ssh for a host and gives it the join config; its standard error is a pipe.
    """

    def __init__(self, options: SshOptions, spawn: Callable[[str, bytes], Child] | None = None) -> None:
        self._options = options
        self._spawn = spawn or self._ssh
        self._connections: dict[int, _SshOutput] = {}

    @classmethod
    def of(cls, context: LaunchContext) -> SshLauncher:
        """The launcher of a run."""
        return cls(SshOptions(context.ssh_port, context.ssh_identity_file))

    async def start(self, host: str, bootstrap: Bootstrap) -> None:
        """Start an agent.

        Raises:
            OSError: ssh is not installed here, or no port can be opened.
        """
        process = self._spawn(host, await bootstrap.join_config())
        connection = _SshOutput(host, bootstrap.connected)

        def reaped(code: int) -> None:
            del self._connections[bootstrap.agent_id]
            if (
                bootstrap.connected.is_set() and not connection.killed and (code == SSH_FAILURE_CODE or code < 0)
            ):  # ssh's own end
                _log.warning("host %s: the ssh connection has ended; its agent continues without it", host)
            else:
                bootstrap.ended(failure(host, code, tuple(connection.stderr_lines), VERSION))

        connection.child = WatchedProcess(process, reaped, connection.listen)
        self._connections[bootstrap.agent_id] = connection

    async def stop(self, agent_id: int, /) -> None:
        """Kill ssh. The agent ends on its own when the driver refuses it, or is silent."""
        if connection := self._connections.get(agent_id):
            connection.killed = True
            connection.child.kill()
            await connection.child.gone.wait()

    def watches(self, agent_id: int, /) -> bool:
        """Reported by ssh, while its connection lasts."""
        return agent_id in self._connections

    def _ssh(self, host: str, join_config: bytes) -> Child:
        with standard_input(join_config) as config_file:
            return Child(
                self._options.command(host, remote_command(sys.executable, host)),
                stdin=config_file,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )


class _SshOutput:
    """The output of ssh, and whether it was killed by this process."""

    child: WatchedProcess

    def __init__(self, host: str, connected: asyncio.Event) -> None:
        self.stderr_lines: deque[str] = deque(maxlen=MAX_STDERR_LINES)
        self.killed = False
        self._host = host
        self._connected = connected

    def listen(self, line: str) -> None:
        self.stderr_lines.append(line)
        if self._connected.is_set():  # earlier lines are part of the reason why it does not connect
            _log.warning("host %s: %s", self._host, line)


def failure(host: str, code: int, stderr_lines: Sequence[str], version: str) -> str:
    """Why an agent that was started over ssh is not there, or no longer, and what to do about it.

    Args:
        host: the host.
        code: ssh's exit code: the agent's, or 255.
        stderr_lines: the last lines on standard error, of ssh or of the agent.
        version: the driver's version.
    """
    text = "\n".join(stderr_lines)
    last = next((line for line in reversed(stderr_lines) if line.strip()), "")
    if code == SSH_FAILURE_CODE:
        return own_failure(host, stderr_lines)
    if code < 0:
        return f"ssh {exit_text(code)}"
    if code in (126, 127):
        path = sys.executable
        return f"no Python can be run there at {path}: edriver's Python must be at the same path on all hosts ({last})"
    if "No module named edriver" in text or "No module named 'edriver" in text:
        return f"Python at {sys.executable} has no edriver installed there: pip install edriver=={version} on that host"
    # /bin/sh reports a signal as 128 + its number.
    how = exit_text(128 - code) if code > 128 else exit_text(code)
    return f"its agent {how}" + (f": {last}" if last else "")
