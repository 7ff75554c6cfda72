"""The agent's child processes: started in groups of their own, reaped when they exit, none left behind.

The agent is a subreaper: processes whose parents die become its children, so it can reap what a killed trainer leaves,
and find at its end even a daemon that has left its session.

Orphans have no pidfd of ours, so exits are looked for by SIGCHLD. Of a worker that has exited the guard forgets the
group before its leader is reaped: if the agent dies, the guard's list is exact to the last step.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from edriver.system.child import Child
from edriver.system.guard import Guard
from edriver.system.proc_stat import PARENT_FIELD, stat_fields
from edriver.text.start_failure import start_failure

PR_SET_CHILD_SUBREAPER = 36


class SpawnError(RuntimeError):
    """A worker's process could not be started.

    Attributes:
        code: the exit code that a shell would give: 127 for a command that was not found, 126 for any other reason.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def become_subreaper() -> None:
    """Adopt the orphans among this process's descendants, so that they can be reaped and found.

    Raises:
        OSError: the kernel refuses.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot become a child subreaper: {os.strerror(number)}")


def children_of(parent: int) -> list[int]:
    """The process ids of a process's children, zombies included (proc(5): /proc/PID/stat)."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):  # it has ended meanwhile
                if int(stat_fields(entry / "stat")[PARENT_FIELD]) == parent:
                    found.append(int(entry.name))
    return found


class Processes:
    """All child processes of the agent.

    Args:
        on_exit: called with a worker's process id and its exit code (negative: the signal that ended it), when it has
            exited, the rest of its group has been killed, and it has been reaped.
        guard: ends them if the agent cannot; started here if it is not running yet.
    """

    def __init__(self, on_exit: Callable[[int, int], None], guard: Guard) -> None:
        self._on_exit = on_exit
        self._guard = guard
        self._running: dict[int, Child] = {}
        self._closing = False
        self._reaped = asyncio.Event()

    def open(self) -> None:
        """Adopt orphans, start the guard, and from now on reap all processes that exit (in the running event loop)."""
        become_subreaper()
        if self._guard.pid is None:
            self._guard.start()
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self.reap)
        self.reap()  # processes that exited before the handler was set

    def start(
        self, command: Sequence[str], environment: Mapping[str, str], inherited: Sequence[int] = ()
    ) -> tuple[int, int, int]:
        """Start a worker.

        Args:
            command: the program and its arguments.
            environment: all of its environment.
            inherited: descriptors that it is to have, by the same numbers.

        Returns:
            its process id, which is also its group's, and the ends to read, non-blocking, of the pipes from its
            standard output and error. Closing them is the caller's business.

        Raises:
            SpawnError: it could not be started; the message has the reason.
        """
        pipes: list[int] = []
        try:
            pipes += os.pipe()
            pipes += os.pipe()
            stdout, child_stdout, stderr, child_stderr = pipes
            worker = Child(
                command,
                stdout=child_stdout,
                stderr=child_stderr,
                environment=environment,
                inherited=inherited,
                tethered=True,
            )
        except OSError as error:
            for fd in pipes:
                os.close(fd)
            raise SpawnError(
                127 if isinstance(error, FileNotFoundError) else 126,
                f"{command[0]!r}: {start_failure(command[0], error, 'a program on this host')}",
            ) from error
        os.close(child_stdout)
        os.close(child_stderr)
        os.set_blocking(stdout, False)
        os.set_blocking(stderr, False)
        self._running[worker.pid] = worker
        self._guard.watch(worker.pid)
        return worker.pid, stdout, stderr

    def signal_group(self, group: int, number: signal.Signals) -> None:
        """Send a signal to a worker's whole process group; nothing happens if the worker has been reaped."""
        if group in self._running:
            self._running[group].signal_group(number)

    def reap(self) -> None:
        """Take in all exits so far."""
        while True:
            try:
                exited = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if exited is None:
                return
            self._reap(exited.si_pid)

    def _reap(self, pid: int) -> None:
        worker = self._running.pop(pid, None)
        if worker:
            worker.signal_group(signal.SIGKILL)
            self._guard.forget(pid)
            worker.reap()
        elif pid == self._guard.pid:
            self._guard.reap()
            if not self._closing:
                self._replace_guard()
        else:
            os.waitpid(pid, 0)  # an orphan
        self._reaped.set()
        if worker and worker.code is not None:
            self._on_exit(pid, worker.code)

    def _replace_guard(self) -> None:
        self._guard.start()
        for group in self._running:
            self._guard.watch(group)

    async def close(self, bound: float) -> bool:
        """Kill every descendant that is left, then end the guard.

        Each killed process's children become children of the agent, so this repeats until there are none.

        Args:
            bound: seconds that it may take in all.

        Returns:
            whether nothing was left.
        """
        self._closing = True
        try:
            async with asyncio.timeout(bound):
                while left := self._children():
                    for pid in left:
                        with suppress(ProcessLookupError, PermissionError):
                            os.kill(pid, signal.SIGKILL)
                    await self._next_reaping()
                self._guard.close()
                while self._guard.pid is not None:
                    await self._next_reaping()
        except TimeoutError:
            return False
        finally:
            self._guard.close()
        return True

    def _children(self) -> list[int]:
        self.reap()
        return [pid for pid in children_of(os.getpid()) if pid != self._guard.pid]

    async def _next_reaping(self) -> None:
        self._reaped.clear()
        self.reap()
        await self._reaped.wait()
