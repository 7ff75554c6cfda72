"""Who owns a folder of checkpoints: one living run, which says so in a small file in the folder, and renews it.

The file is `owner-N.json`, and the highest N counts. To take the folder over is to create the next one, which only one
of several can do, on a network file system too. An owner writes to its own file alone, so that one that was stopped and
continues cannot take back what has been taken over meanwhile; it finds the higher number before it writes.

Within a run, rank 0 of the newest round writes: round ids only grow, so rank 0 of an older round finds that it is over.

Clocks of machines are not compared. Whether an owner on this machine lives is known at once: its process does, or the
agent that would start another. A file of another machine is watched for as long as a lease. Between the last look and
the rename that makes a checkpoint whole there are microseconds; a look after it takes back what was written then.

Each worker looks when it offers a state that was never synced, and ends with the owner's name if another run lives.
Rank 0 claims the folder before the first sync, in later rounds beside training, and again before a checkpoint is
written; before and after the manifest is renamed it looks whether it still is the owner.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from edriver.checkpoint_folder.folder import CheckpointFolder
from edriver.model.ids import NO_ROUND, RoundId
from edriver.system.proc_stat import process_lives, process_name, this_machine
from edriver.text.printable import printable_line

logger = logging.getLogger("edriver.worker")

FORMAT: Final = 1

LEASE: Final = 15.0
"""Seconds for which the file of an owner on another machine must stay as it is before the folder is taken over."""

RENEWAL_PERIOD: Final = 3.0
"""Seconds between two renewals."""

LOOK_PERIOD: Final = 0.5
"""Seconds between two looks at another owner's file."""

MAX_ATTEMPTS: Final = 20
"""How often to try to create the next file, while others are faster."""

MAX_TEXT: Final = 200

_NAME: Final = re.compile(r"owner-(\d{6,18})\.json")


class FolderInUseError(Exception):
    """Another run owns the folder: the message names it, and what to do."""


class RoundOverError(Exception):
    """A later round of the same run writes the folder's checkpoints now."""


@dataclass(frozen=True, slots=True)
class FolderOwner:
    """What the file of an owner says.

    Attributes:
        run_id: its run; empty: a script without a driver.
        round_id: the round whose rank 0 it is.
        host: its host, for people.
        machine: see proc_stat.this_machine,
        process: and process_name: of its process there,
        agent: and of the agent that would start another; empty without an agent.
        token: its own.
        renewals: how often it has renewed the file.
    """

    run_id: str
    round_id: RoundId
    host: str
    machine: str
    process: str
    agent: str
    token: str
    renewals: int = 0

    def text(self) -> str:
        """As it is written."""
        plain = {name: getattr(self, name) for name in _TEXTS}
        return json.dumps({"format": FORMAT, **plain, "round_id": list(self.round_id), "renewals": self.renewals})

    @staticmethod
    def of(text: bytes) -> FolderOwner:
        """Parse an owner; UNREADABLE if the text is not an owner, or has another format."""
        try:
            found = json.loads(text)
            if found["format"] != FORMAT:
                return UNREADABLE
            incarnation, n = found["round_id"]
            texts = {name: str(found[name])[:MAX_TEXT] for name in _TEXTS}
            return FolderOwner(round_id=RoundId(int(incarnation), int(n)), renewals=int(found["renewals"]), **texts)
        except (ValueError, KeyError, TypeError, OverflowError):
            return UNREADABLE

    @staticmethod
    def this_process(environ: Mapping[str, str]) -> FolderOwner:
        """This process, as a worker of the run that the environment names, or as a script on its own."""
        agent = environ.get("EDRIVER_AGENT_PID", "")
        return FolderOwner(
            run_id=environ.get("EDRIVER_RUN_ID", ""),
            round_id=NO_ROUND,
            host=environ.get("EDRIVER_HOST") or socket.gethostname(),
            machine=this_machine(),
            process=process_name(os.getpid()),
            agent=process_name(int(agent)) if agent.isdecimal() else "",
            token=secrets.token_hex(8),
        )

    def is_same_run(self, other: FolderOwner) -> bool:
        """Whether both are of one run."""
        if self.run_id or other.run_id:
            return self.run_id == other.run_id
        return (self.machine, self.process) == (other.machine, other.process)

    @property
    def lives_here(self) -> bool:
        """Of an owner on this machine: whether it lives, or its agent, which would start another."""
        return process_lives(self.process) or process_lives(self.agent)

    def __str__(self) -> str:
        """For people."""
        if self == UNREADABLE:
            return "a run whose file cannot be read"
        host, pid = printable_line(self.host), printable_line(self.process.partition(" ")[0])
        if not self.run_id:
            return f"a script without a driver (pid {pid} on {host})"
        return f"run {printable_line(self.run_id)} (rank 0 of round {self.round_id}, pid {pid} on {host})"


_TEXTS: Final = ("run_id", "host", "machine", "process", "agent", "token")

UNREADABLE: Final = FolderOwner("?", NO_ROUND, "", "", "", "", "")
"""Stands for an owner whose file is being written, or is damaged."""


def owner_of(folder: CheckpointFolder) -> tuple[int, FolderOwner]:
    """The number of the file that counts, and what it says; 0: the folder has no owner.

    Raises:
        OSError: the folder cannot be read.
    """
    numbers = [int(match[1]) for name in folder.names() if (match := _NAME.fullmatch(name))]
    for number in sorted(numbers, reverse=True):
        if (text := folder.read_note(_file(number))) is not None:  # else it was removed meanwhile
            return number, FolderOwner.of(text)
    return 0, UNREADABLE


class Ownership:
    """This process's claim to a folder: may be used by several threads.

    Args:
        folder: the folder.
        me: this process.
        clock: seconds, monotonic.
        sleep: waits for so many seconds.
        period: seconds between two renewals.
    """

    def __init__(
        self,
        folder: CheckpointFolder,
        me: FolderOwner,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        period: float = RENEWAL_PERIOD,
    ) -> None:
        self._folder = folder
        self._me = me
        self._clock = clock
        self._sleep = sleep
        self._period = period
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._silent: tuple[int, FolderOwner] | None = None
        self._owned = False
        self._wanted: RoundId | None = None
        self._wake = threading.Event()
        self._ended = False
        self._thread: threading.Thread | None = None

    def look(self) -> None:
        """See that no other run that lives owns the folder. Waits for LEASE at most, for one on another machine.

        Raises:
            FolderInUseError: one does.
            OSError: the folder cannot be read.
        """
        with self._lock:
            self._judged()

    def claim(self, round_id: RoundId) -> None:
        """Own the folder, as rank 0 of this round, from now on until `release`; waits as `look` does.

        Raises:
            FolderInUseError: another run owns it.
            RoundOverError: a later round of this run does.
            OSError: the folder cannot be read, or written to.
        """
        with self._lock:
            self._claim(round_id)
        self._start()

    def claim_soon(self, round_id: RoundId) -> None:
        """The same in a thread, for a run that owns the folder already: its rank 0 may be another now."""
        self._owned = True
        self._wanted = round_id
        self._start()
        self._wake.set()

    def check(self, round_id: RoundId) -> None:
        """See that the folder still is this round's.

        Raises:
            FolderInUseError: another run has taken it over.
            RoundOverError: a later round of this run has.
            OSError: the folder cannot be read.
        """
        with self._lock:
            number, owner = owner_of(self._folder)
            if number and owner == UNREADABLE:  # it may be being written
                self._sleep(LOOK_PERIOD)
                number, owner = owner_of(self._folder)
        if number and owner.token != self._me.token:
            self._refuse_later_round(owner, round_id)
            if not owner.is_same_run(self._me):
                raise FolderInUseError(self._taken_by(owner))

    def release(self) -> None:
        """Let the folder go: the run has ended."""
        if os.getpid() != self._pid:  # a forked child inherits what runs at the exit
            return
        self._ended = True
        self._wake.set()
        if not self._lock.acquire(timeout=self._period):  # a file system that hangs must not keep the process
            return
        try:
            number, owner = owner_of(self._folder)
            if number and owner.token == self._me.token:
                self._folder.remove_note(_file(number))
        except Exception:
            logger.debug("%s cannot be released", self._folder.location, exc_info=True)
        finally:
            self._lock.release()

    def _claim(self, round_id: RoundId) -> None:
        for _ in range(MAX_ATTEMPTS):
            number, owner = found = owner_of(self._folder)
            if number and owner.is_same_run(self._me):
                self._refuse_later_round(owner, round_id)
            elif number and self._owned and found != self._silent and owner != UNREADABLE:
                # What has been lost stays so: the two would mix.
                raise FolderInUseError(self._taken_by(owner))
            else:
                number, owner = self._judged()
            if number and owner.token == self._me.token:
                if owner.round_id != round_id:
                    self._rewrite(number, replace(owner, round_id=round_id))
                self._owned = True
                return
            me = replace(self._me, round_id=round_id)
            if not self._folder.create_note(_file(number + 1), me.text().encode()):
                continue
            created, latest = owner_of(self._folder)
            if latest.token != me.token:  # it had been taken over more than once since the look
                self._folder.remove_note(_file(number + 1))
                continue
            if number and not owner.is_same_run(me):
                logger.info("took over the checkpoint folder %s from %s", self._where, owner)
            self._remove_before(created)
            self._owned = True
            return
        raise FolderInUseError(self._in_use_by(owner_of(self._folder)[1]))

    def _judged(self) -> tuple[int, FolderOwner]:
        """The owner, if it is this run or does not live; number 0 without an owner.

        Raises:
            FolderInUseError: another run owns the folder, and lives.
        """
        number, owner = owner_of(self._folder)
        changes, deadline = 0, 0.0
        while number and not owner.is_same_run(self._me) and (number, owner) != self._silent:
            if owner.machine == self._me.machine:
                if owner.lives_here:
                    raise FolderInUseError(self._in_use_by(owner))
                break
            if not deadline:
                logger.warning(
                    "the checkpoint folder %s was last used by %s: waiting for up to %g s to see whether that owner "
                    "is still running",
                    self._where,
                    owner,
                    LEASE,
                )
                deadline = self._clock() + LEASE
            if self._clock() >= deadline:
                break
            self._sleep(LOOK_PERIOD)
            found = owner_of(self._folder)
            if found != (number, owner):
                changes, deadline = changes + 1, self._clock() + LEASE
                number, owner = found
                if number and changes == 2:  # what a network file system has cached may look like a renewal, once
                    raise FolderInUseError(self._in_use_by(owner))
        self._silent = (number, owner)
        return number, owner

    def _renew(self) -> None:
        number, owner = owner_of(self._folder)
        if number and owner.token == self._me.token:
            self._rewrite(number, replace(owner, renewals=owner.renewals + 1))

    def _rewrite(self, number: int, owner: FolderOwner) -> None:
        self._folder.rewrite_note(_file(number), owner.text().encode())

    def _remove_before(self, number: int) -> None:
        for name in self._folder.names():
            if (match := _NAME.fullmatch(name)) and int(match[1]) < number:
                with contextlib.suppress(OSError):
                    self._folder.remove_note(name)

    def _start(self) -> None:
        if self._thread is None:
            _claims.append(self)
            self._thread = threading.Thread(target=self._run, name="edriver-checkpoint-owner", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            self._wake.wait(self._period)
            self._wake.clear()
            wanted, self._wanted = self._wanted, None
            try:
                with self._lock:
                    if self._ended:
                        return
                    if wanted is None:
                        self._renew()
                    else:
                        self._claim(wanted)
            except FolderInUseError as error:
                logger.warning("%s", error)
            except Exception:  # others take it for silence; what goes wrong with a checkpoint is said by what writes it
                logger.debug("the claim to %s cannot be renewed", self._where, exc_info=True)

    def _refuse_later_round(self, owner: FolderOwner, round_id: RoundId) -> None:
        if owner.is_same_run(self._me) and owner.round_id > round_id:
            raise RoundOverError(f"rank 0 of round {owner.round_id} writes the checkpoints in {self._where} now")

    def _in_use_by(self, owner: FolderOwner) -> str:
        return (
            f"the checkpoint folder {self._where} is in use by another run: {owner}. Wait until it has ended, or give "
            "checkpoint= another folder"
        )

    def _taken_by(self, owner: FolderOwner) -> str:
        return (
            f"another run has taken over the checkpoint folder {self._where}, because this run had not renewed its "
            f"claim: {owner}"
        )

    @property
    def _where(self) -> str:
        return self._folder.location


_claims: Final[list[Ownership]] = []
"""Those of this process."""


def release_at_exit() -> None:
    """Let all folders of this process go when it ends, once it writes to none any more: its run has ended well."""
    for claim in _claims:
        atexit.unregister(claim.release)
        atexit.register(claim.release)


def _file(number: int) -> str:
    return f"owner-{number:06}.json"
