"""What a process keeps a guard by: a small process that clears up after it, however it ends (guard_main.py)."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from edriver.system import guard_main
from edriver.system.child import Child


class Guard:
    """One process's guard.

    Process ids are reused: a group has to be forgotten before its leader is reaped.

    Args:
        folder: is removed in the end; None: none is. It need not be there yet: one that is made once the guard runs is
            never left.
        mark: all processes with this variable, NAME=VALUE, in their environment are killed in the end; empty: none are.
        keeps_folder: whether the folder stays if this process is killed.
    """

    def __init__(self, folder: Path | None = None, mark: str = "", *, keeps_folder: bool = False) -> None:
        self._duties = ["" if folder is None else str(folder), mark, "keep" if keeps_folder else ""]
        self._process: Child | None = None
        self._pipe = -1
        self._other_folders: list[str] = []

    @property
    def pid(self) -> int | None:
        """Its process id; None while it is not running."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Start the process; its list is empty.

        Raises:
            OSError: it cannot be started.
        """
        read_end, self._pipe = os.pipe()
        try:
            self._process = Child(
                [sys.executable, "-I", "-S", guard_main.__file__, *self._duties],
                stdin=read_end,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        finally:
            os.close(read_end)
        for folder in self._other_folders:
            self._say(f"{folder}\n")

    def watch(self, group: int) -> None:
        """Put a process group on the list."""
        self._say(f"+{group}\n")

    def forget(self, group: int) -> None:
        """Take a process group off the list."""
        self._say(f"-{group}\n")

    def also_remove(self, folder: Path) -> None:
        """Have another folder removed in the end, by its absolute path; it need not be there yet.

        Raises:
            ValueError: its path is not one line.
        """
        if "\n" in str(folder):
            raise ValueError(f"{str(folder)!r} is not one line")
        self._other_folders.append(str(folder))
        self._say(f"{folder}\n")

    def close(self) -> None:
        """Let it do its duty and end. Nothing is being started any more."""
        self._say(".\n")
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1

    def finish(self, bound: float) -> None:
        """Close it, wait for its end, and remove the folder where it was killed before it could.

        Args:
            bound: seconds to wait at most.
        """
        self.close()
        if self._process:
            with suppress(TimeoutError):
                self._process.wait(bound)
        if folder := self._duties[0]:
            guard_main.remove(folder)

    def reap(self) -> None:
        """Its process has ended."""
        if self._process:
            self._process.reap()
        self._process = None
        self.close()

    def _say(self, line: str) -> None:
        if self._pipe >= 0:
            with suppress(BrokenPipeError):  # it was killed
                os.write(self._pipe, os.fsencode(line))
