"""Starts agents on this machine, notices at once when one exits, and leaves none behind."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from edriver.driver.words import exit_text

RESOLVE_SECONDS: Final = 10.0
"""How long looking up a host's name may take."""

NOT_HERE: Final = (
    "it is not this machine, and this version starts agents on this machine only: name it localhost, 127.0.0.1, "
    "127.0.0.2, ... or by its own name"
)

Spawn = Callable[[str, int, str], "subprocess.Popen[bytes]"]
"""Starts the process of an agent, in a session of its own: (host, agent_id, address) -> process."""

OnExit = Callable[[str, int, str], None]
"""Told that an agent has exited, or could not be started: (host, agent_id, reason)."""


async def address_here(name: str) -> str | None:
    """The address by which this machine is called so; None if the name is another's.

    An address is this machine's if a socket can be bound to it.

    Raises:
        OSError: the name cannot be resolved (socket.gaierror), or not in time (TimeoutError).
    """
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(RESOLVE_SECONDS):
        found = await loop.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return next((str(where[0]) for family, _, _, _, where in found if _is_here(family, where)), None)


def _is_here(family: int, where: tuple[str | int | bytes, ...]) -> bool:
    address = ipaddress.ip_address(str(where[0]).partition("%")[0])
    # A bind to these succeeds, and makes them nobody's address.
    if address.is_unspecified or address.is_multicast or where[0] == "255.255.255.255":
        return False
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(where)
        except OSError:
            return False
    return True


class AgentCommand:
    """How an agent's process is started; a Spawn.

    Args:
        run_folder: holds the driver's socket, and gets a folder for each agent.
        socket_path: where the driver listens.
        run_id: the run.
    """

    def __init__(self, run_folder: Path, socket_path: Path, run_id: str) -> None:
        self._run_folder = run_folder
        self._socket_path = socket_path
        self._run_id = run_id

    def __call__(self, host: str, agent_id: int, address: str) -> subprocess.Popen[bytes]:
        """Start the agent.

        Raises:
            OSError: it cannot be started.
        """
        folder = self._run_folder / f"agent-{agent_id}"
        folder.mkdir(mode=0o700)
        command = [
            *(sys.executable, "-P", "-m", "edriver.worker.agent_main"),  # -P: not what lies in the user's folder
            *("--driver", f"unix:{self._socket_path}"),
            *("--run-id", self._run_id),
            *("--host", host),
            *("--agent-id", str(agent_id)),
            *("--address", address),
            *("--folder", str(folder)),
        ]
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=2,  # it prints nothing of use to whoever reads our stdout
            env={"GRPC_VERBOSITY": "ERROR", **os.environ, "GRPC_ENABLE_FORK_SUPPORT": "0"},
            start_new_session=True,
        )


class LocalLauncher:
    """The agents on this machine. Every name or address of the machine is a host of its own.

    Args:
        spawn: starts an agent's process.
        on_exit: told of every agent's end, asked for or not.
    """

    def __init__(self, spawn: Spawn, on_exit: OnExit) -> None:
        self._spawn = spawn
        self._on_exit = on_exit
        self._starting: dict[int, asyncio.Task[None]] = {}
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._empty = asyncio.Event()
        self._empty.set()
        self._closed = False

    @property
    def running(self) -> tuple[int, ...]:
        """The ids of agents whose process runs."""
        return tuple(self._running)

    def start(self, host: str, agent_id: int) -> None:
        """Start an agent, soon; `on_exit` hears of it if that fails."""
        if not self._closed:
            self._empty.clear()
            task = self._starting[agent_id] = asyncio.create_task(self._start(host, agent_id))
            task.add_done_callback(lambda _: self._note_started(agent_id))

    def kill(self, agent_id: int) -> None:
        """Kill an agent's process group at once, or do not start it any more."""
        if task := self._starting.get(agent_id):
            task.cancel()
        if process := self._running.get(agent_id):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # not reaped yet, so the number is still its own

    def close(self) -> None:
        """Start no more."""
        self._closed = True
        for task in self._starting.values():
            task.cancel()

    async def wait_until_empty(self) -> None:
        """Wait until no agent runs or is being started."""
        await self._empty.wait()

    async def _start(self, host: str, agent_id: int) -> None:
        reason = ""
        try:
            address = await address_here(host)
            if address is None:
                reason = NOT_HERE
            else:
                self._watch(host, agent_id, self._spawn(host, agent_id, address))
        except TimeoutError:
            reason = f"its name was not resolved within {RESOLVE_SECONDS:g} s"
        except (socket.gaierror, UnicodeError) as error:
            reason = f"its name cannot be resolved: {error.args[-1]}"
        except OSError as error:
            reason = f"its agent cannot be started: {error}"
        if reason:
            self._on_exit(host, agent_id, reason)

    def _watch(self, host: str, agent_id: int, process: subprocess.Popen[bytes]) -> None:
        self._running[agent_id] = process
        descriptor = os.pidfd_open(process.pid)
        loop = asyncio.get_running_loop()

        def reap() -> None:
            loop.remove_reader(descriptor)
            os.close(descriptor)
            code = process.wait()  # it has exited: this does not wait
            del self._running[agent_id]
            self._note_empty()
            self._on_exit(host, agent_id, f"its agent {exit_text(code)}")

        loop.add_reader(descriptor, reap)

    def _note_started(self, agent_id: int) -> None:
        """Not in a `finally` of the task: one that is cancelled before its first step never gets there."""
        del self._starting[agent_id]
        self._note_empty()

    def _note_empty(self) -> None:
        if not self._starting and not self._running:
            self._empty.set()
