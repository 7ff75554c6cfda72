"""A child process in its own session and process group: started, watched, killed with its group, reaped.

Started by subprocess, not by the event loop: uvloop forks for that, which copies the process's page tables and calls
gRPC's fork handlers.

Process ids are reused, and a group's number is its leader's. So a group is signalled only while its leader has not been
reaped: an exit is looked at first, then the rest of the group is killed, and only then is the leader reaped.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import IO, Any

from edriver.system.tether import Tether


class Child:
    """One child process and its group.

    Args:
        command: the program and its arguments.
        stdin: as Popen's; so are the two that follow.
        stdout: None: this process's.
        stderr: None: this process's.
        environment: None: this process's.
        inherited: descriptors that it is to have, by the same numbers.
        tethered: whether the kernel kills its group when this process has ended, in whatever way.

    Attributes:
        stdout: the end to read, where it is a pipe.
        stderr: the same of standard error.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        stdin: int | IO[Any] = subprocess.DEVNULL,
        stdout: int | None = None,
        stderr: int | None = None,
        environment: Mapping[str, str] | None = None,
        inherited: Sequence[int] = (),
        tethered: bool = False,
    ) -> None:
        self._tether = Tether() if tethered else None
        try:
            self._process = subprocess.Popen(
                command,
                bufsize=0,
                env=environment,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
                pass_fds=(*inherited, self._tether.end) if self._tether else tuple(inherited),
            )
        except OSError:
            if self._tether:
                self._tether.cut()
            raise
        if self._tether:
            self._tether.tie(self._process.pid)
        self.stdout = self._process.stdout
        self.stderr = self._process.stderr

    @property
    def pid(self) -> int:
        """Its process id, which is its group's number, too."""
        return self._process.pid

    @property
    def code(self) -> int | None:
        """Its exit code, negative: the signal that ended it; None: it has not been reaped."""
        return self._process.returncode

    def watch(self, exited: Callable[[], None]) -> None:
        """Have the running event loop call this once, as soon as the process has exited. It is still to be reaped.

        Raises:
            OSError: no descriptor is free; the process has been killed and reaped.
        """
        loop = asyncio.get_running_loop()
        try:
            descriptor = os.pidfd_open(self.pid)
        except OSError:
            self.signal_group(signal.SIGKILL)
            self.reap()
            raise

        def readable() -> None:
            loop.remove_reader(descriptor)
            os.close(descriptor)
            exited()

        loop.add_reader(descriptor, readable)

    def signal_group(self, number: signal.Signals) -> None:
        """Send a signal to all of its group; nothing happens if the process has been reaped."""
        if self.code is None:
            # PermissionError: all that is left belongs to another user (sudo, a setuid program).
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def reap(self) -> int:
        """Kill what is left of the group of a process that has exited, and reap it; returns its exit code."""
        self.signal_group(signal.SIGKILL)
        if self._tether:
            self._tether.cut()
        return self._process.wait()

    def wait(self, seconds: float) -> None:
        """Wait for its end, and reap it then.

        Raises:
            TimeoutError: it has not ended by then.
        """
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"process {self.pid} goes on after {seconds:g} s") from None
