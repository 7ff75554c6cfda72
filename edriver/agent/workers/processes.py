"""The agent's child processes: started in separate groups, reaped when they exit, none left behind.

The agent is a subreaper: processes whose parents die become its children, so it can reap what a killed trainer leaves,
and find at its end even a daemon that has left its session.

What a worker has started in a separate session outlives the worker's group. It may hold what the slot's next worker
needs (a port, a lock, a GPU), so it ends with its worker: an exit is reported once all orphans with the worker's mark
in their environment are gone, and every orphan that is exiting and no longer shows whose it is.

Orphans have no pidfd of ours, so exits are looked for by SIGCHLD. Of a worker that has exited the guard forgets the
group before its leader is reaped: if the agent dies, the guard's list is exact to the last step.

That mark is a variable of the environment, `EDRIVER_FAMILY`, with a value for each worker's process. A process that has
removed it ends with its agent, if the agent or its guard is there to end it; otherwise the next run ends it, by the
folder's path in its environment (edriver/system/leftovers.py). One that has cleaned all of its environment is out of
reach once agent and guard were killed at once: nothing distinguishes it from the user's other processes.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from edriver.system.child import Child
from edriver.system.guard import Guard
from edriver.system.proc_stat import FLAGS_FIELD, PARENT_FIELD, PF_EXITING, PROC_ROOT, stat_fields
from edriver.text.start_failure import start_failure

logger = logging.getLogger("edriver.agent")

PR_SET_CHILD_SUBREAPER = 36

MARK_VARIABLE = "EDRIVER_FAMILY"
"""All that a worker's process starts has it, with the same value, and nothing else of this agent."""

MAX_LISTS = 10
"""Lists of this process's children, of which two should agree, before every process of the machine is looked at."""

ORPHANS_TIMEOUT = 5.0
"""Seconds for which the exit of a worker waits for processes that it has left, once these have been killed."""

LOOK_INTERVAL = 0.02
"""Seconds between two looks for them. A killed one's own children become orphans in turn."""


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


def own_children() -> set[int]:
    """The process ids of this process's children, zombies included. Costs no look at every process of the machine.

    A list that the kernel makes while children end may leave one out (proc(5): children), so two have to agree.
    """
    before: set[int] | None = None
    for _ in range(MAX_LISTS):
        try:
            texts = [path.read_text() for path in Path("/proc/self/task").glob("*/children")]
        except OSError:  # a thread has ended meanwhile
            continue
        if not texts:  # this kernel makes no such lists
            break
        found = {int(number) for text in texts for number in text.split()}
        if found == before:
            return found
        before = found
    return set(children_of(os.getpid()))


class Processes:
    """All child processes of the agent.

    Args:
        on_exit: called with a worker's process id and its exit code (negative: the signal that ended it), when it has
            exited and been reaped, and what it had started is gone: the rest of its group, and its orphans.
        guard: ends them if the agent cannot; started here if it is not running yet.
    """

    def __init__(self, on_exit: Callable[[int, int], None], guard: Guard) -> None:
        self._on_exit = on_exit
        self._guard = guard
        self._running: dict[int, Child] = {}
        self._marks: dict[int, bytes] = {}
        self._given_up: set[int] = set()
        """Orphans that have not ended when killed: no other worker's exit waits for them."""
        self._started = 0
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
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        inherited: Sequence[int] = (),
        stdin: int | None = None,
    ) -> tuple[int, int, int]:
        """Start a worker.

        Args:
            command: the program and its arguments.
            environment: all of its environment.
            inherited: descriptors that it is to have, by the same numbers.
            stdin: its standard input; None: it has no input.

        Returns:
            its process id, which is also its group's, and the ends to read, non-blocking, of the pipes from its
            standard output and error. Closing them is the caller's business.

        Raises:
            SpawnError: it could not be started; the message has the reason.
        """
        pipes: list[int] = []
        self._started += 1
        mark = f"{os.getpid()}.{self._started}"
        try:
            pipes += os.pipe()
            pipes += os.pipe()
            stdout, child_stdout, stderr, child_stderr = pipes
            worker = Child(
                command,
                stdin=subprocess.DEVNULL if stdin is None else stdin,
                stdout=child_stdout,
                stderr=child_stderr,
                environment={**environment, MARK_VARIABLE: mark},
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
        self._marks[worker.pid] = os.fsencode(f"{MARK_VARIABLE}={mark}")
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
            self._given_up.discard(pid)
        self._reaped.set()
        if worker and worker.code is not None:
            self._end_orphans(pid, worker.code, self._marks.pop(pid), deadline=None)

    def _end_orphans(self, pid: int, code: int, mark: bytes, deadline: float | None) -> None:
        """Kill what a worker has left, then report its exit.

        Args:
            pid: the worker's process id,
            code: and its exit code.
            mark: what its orphans have in their environment.
            deadline: when the exit is reported in any case, by the loop's clock; None: this is the first look.
        """
        others = own_children() - self._running.keys() - self._given_up
        left = [each for each in others if _is_exiting(each) or _is_marked(each, mark)]
        for orphan in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(orphan, signal.SIGKILL)  # not reaped yet, so its process ID has not been reused
        if left and not self._closing:
            loop = asyncio.get_running_loop()
            end = loop.time() + ORPHANS_TIMEOUT if deadline is None else deadline
            if deadline is None:
                logger.info("worker process %d left %d processes behind: killing them", pid, len(left))
            if loop.time() < end:
                loop.call_later(LOOK_INTERVAL, self._end_orphans, pid, code, mark, end)
                return
            logger.warning("worker process %d left processes behind that do not end when killed: %s", pid, left)
            self._given_up.update(left)
        self._on_exit(pid, code)

    def _replace_guard(self) -> None:
        self._guard.start()
        for group in self._running:
            self._guard.watch(group)

    async def close(self, bound: float) -> bool:
        """Kill every descendant that is left, then end the guard.

        The children of a killed process become children of the agent, so this repeats until no child is left.

        Args:
            bound: the total time limit, in seconds.

        Returns:
            whether no process was left.
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


def _is_exiting(pid: int) -> bool:
    """Whether a process is exiting, or has exited and not been reaped.

    Whose it is can no longer be read then: it gives its environment back early. What it holds otherwise, a GPU's memory
    for example, it may hold for some time, and its own children have not been handed to this process yet.
    """
    try:
        return bool(int(stat_fields(PROC_ROOT / str(pid) / "stat")[FLAGS_FIELD]) & PF_EXITING)
    except OSError:
        return False


def _is_marked(pid: int, mark: bytes) -> bool:
    """Whether a process has this variable; False for one that has ended."""
    try:
        return mark in Path("/proc", str(pid), "environ").read_bytes().split(b"\0")
    except OSError:
        return False
