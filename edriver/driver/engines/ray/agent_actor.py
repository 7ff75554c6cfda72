"""The Ray actor that holds a node's resources for the run and whose child process is the agent there.

Imported by Ray's worker processes on the nodes. The kernel ends the agent when the actor's process ends, in whatever
way: nothing of a run uses what Ray has given to others.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections import deque
from typing import Final

from edriver.driver.launch.launcher import agent_command
from edriver.driver.launch.watched import MAX_STDERR_LINES, WatchedProcess, standard_input
from edriver.system.child import Child
from edriver.text.phrases import exit_text

RAYS_OWN_VARIABLES: Final = frozenset({"OMP_NUM_THREADS"})
"""The variables that Ray sets for its worker process, and that edriver sets for each of its workers."""


class AgentActor:
    """One node's agent. An asyncio actor: all methods run in its event loop."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=MAX_STDERR_LINES)
        self._ended: asyncio.Future[str] | None = None

    async def start(self, host: str, join_config: str) -> None:
        """Start the agent.

        Args:
            host: the node's name in the run.
            join_config: what the agent reads on its standard input.

        Raises:
            OSError: it cannot be started.
            RuntimeError: it has been started already.
        """
        if self._ended is not None:
            raise RuntimeError(f"the agent of {host} has been started already")
        ended = self._ended = asyncio.get_running_loop().create_future()
        inherited = {name: value for name, value in os.environ.items() if name not in RAYS_OWN_VARIABLES}
        with standard_input(join_config.encode()) as config_file:
            child = Child(
                agent_command(host),
                stdin=config_file,
                stdout=2,
                stderr=subprocess.PIPE,
                environment={**inherited, "GRPC_ENABLE_FORK_SUPPORT": "0"},
                tethered=True,
            )

        def reaped(code: int) -> None:
            last = next((line for line in reversed(self._lines) if line.strip()), "")
            ended.set_result(f"its agent {exit_text(code)}" + (f": {last}" if code and last else ""))

        self._process = WatchedProcess(child, reaped, self._lines.append)

    async def ended(self) -> str:
        """Wait for the agent's end; returns how it ended, in words."""
        assert self._ended is not None
        return await self._ended
