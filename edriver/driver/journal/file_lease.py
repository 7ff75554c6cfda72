"""Which driver has the journal in a folder, written beside it: for file systems whose locks hold within one machine, or
not at all.

A driver renews the file once a second. Another one on the same machine looks whether that driver's process lives. On
another machine it watches the file for as long as a lease: clocks are not compared. Before each write, a driver looks
whether the file is still its own. One that is stopped between this look and the write may still write an event, so
etcd is what to use where that matters; it decides nothing more, for the look comes again after the write.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from edriver.driver.journal.journal import JournalError, JournalLostError
from edriver.driver.journal.renewal import Renewal
from edriver.system.private_files import open_private
from edriver.system.proc_stat import process_lives, process_name, this_machine

LEASE: Final = 5.0
"""Seconds for which the file of a driver on another machine must stay as it is before the journal is taken."""

RENEWAL_PERIOD: Final = 1.0
"""Seconds between two renewals."""

LOOK_PERIOD: Final = 0.25
"""Seconds between two looks at another driver's file."""

MAX_BYTES: Final = 1000


class Holder(NamedTuple):
    """The contents of the file.

    Attributes:
        token: the token of the driver.
        machine: see `this_machine`.
        process: the driver's process ID there, and its start time.
        renewals: the number of renewals.
    """

    token: str
    machine: str
    process: str
    renewals: str


class FileLease:
    """A driver's claim to the journal in a folder.

    Args:
        path: the file.
        machine: this machine.
        clock: seconds, monotonic.
        sleep: waits for so many seconds.

    Attributes:
        on_lost: see Renewal.
    """

    def __init__(
        self,
        path: Path,
        machine: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._path = path
        self._machine = this_machine() if machine is None else machine
        self._clock = clock
        self._sleep = sleep
        self._token = secrets.token_hex(8)
        self._renewals = 0
        self._renewal = Renewal(self._renew, RENEWAL_PERIOD)
        self.on_lost = self._renewal.on_lost

    def acquire(self) -> None:
        """Have the journal, from now on until `release`.

        Raises:
            JournalError: another driver has it.
            OSError: the file cannot be written.
        """
        found = self._read()
        if found is not None and self._lives(found):
            where = found.machine.partition(" ")[0]
            raise JournalError(f"the driver of this run lives on {where}: it renews {self._path}. Stop it first")
        self._write()
        self._renewal.start()

    def check(self) -> None:
        """Check that no other driver holds the journal. A removed file does not mean that another driver does.

        Raises:
            JournalLostError: another driver holds it.
        """
        found = self._read()
        if found is not None and found.token != self._token:
            where = found.machine.partition(" ")[0]
            raise JournalLostError(f"{self._path} is another driver's: a driver on {where} has it now")

    def release(self) -> None:
        """Let the journal go."""
        self._renewal.end()
        with contextlib.suppress(OSError, JournalLostError):
            self.check()
            self._path.unlink()

    def _lives(self, other: Holder) -> bool:
        if other.machine == self._machine:
            return process_lives(other.process)
        changes, deadline = 0, self._clock() + LEASE
        while self._clock() < deadline:
            self._sleep(LOOK_PERIOD)
            found = self._read()
            if found is not None and found != other:
                changes, other, deadline = changes + 1, found, self._clock() + LEASE
                if changes == 2:  # what a network file system has cached here may look like a renewal, once
                    return True
        return False

    def _read(self) -> Holder | None:
        """What the file says; None: it says nothing."""
        try:
            return Holder(*self._path.read_bytes()[:MAX_BYTES].decode().splitlines())
        except (OSError, ValueError, TypeError):
            return None

    def _write(self) -> None:
        text = "\n".join(Holder(self._token, self._machine, process_name(os.getpid()), f"{self._renewals:012}"))
        with os.fdopen(open_private(self._path), "r+b", buffering=0) as file:  # in place, which works on a full disk
            file.write(text.encode())
            file.truncate()

    def _renew(self) -> None:
        self.check()
        with contextlib.suppress(OSError):  # another driver would see it as silence, and this one that it has the file
            self._renewals += 1
            self._write()
