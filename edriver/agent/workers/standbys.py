"""Standby processes: each has imported what the script imports, and waits to become a worker, which runs it at once.

One second after a round began, the agent starts those that are missing, at a lower priority: behind those that train,
once they have had the processor for themselves for a while. A standby imports what a worker has imported of what is
*installed* (each worker writes that down), takes a step with a tiny model, and waits on a socket. The next StartWorker
gives it its worker's environment through the socket instead of starting a process. The core never hears of standbys.

* In restart mode there is one for each slot of the round, for all processes are started anew together. It becomes the
  worker of its slot, even while it still boots.
* In elastic mode there are few for each host, in the place of a worker that is lost, or on a host that has none yet. It
  may become the worker of any slot, once it is ready: until then a worker starts cold, from the user's own command.

How many there may be the driver says with its heartbeats (--standby-workers), 0 on a host that is drained.

A standby imports in its predecessor's environment, what the script has set included, and in restart mode RANK and its
kin, as a library may read it while it is imported; after a resize such a library would see the old values. The user's
own modules are left to the script. A standby takes the memory of a process that has imported torch and the script's
libraries, 200 MB and more. Where memory is short there are none, and if it runs out, the kernel ends them first.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from edriver.agent.workers import priority
from edriver.agent.workers.processes import Processes, SpawnError
from edriver.common.standby import CUDA_INITIALIZED_CODE, READY, STANDBY_VARIABLE

logger = logging.getLogger("edriver.agent")

STANDBY_DELAY = 1.0
"""Seconds between the beginning of a round and the start of standbys: its members make their first steps."""

MIN_FREE_MEMORY = 2 << 30
"""Bytes of the host's memory that are free where there are standbys: ten times what most take."""

FIRST_KILLED: Final = 1000
"""The oom_score_adj (proc(5)) of a standby: it is killed before anything else, and costs nobody anything."""


class Standby:
    """A standby.

    Args:
        process: its process id, and the ends to read of its pipes (Processes.start).
        waits_on: the agent's end of the socket on which it waits.

    Attributes:
        process: as given.
    """

    def __init__(self, process: tuple[int, int, int], waits_on: socket.socket) -> None:
        self.process = process
        self._waits_on = waits_on
        self._ready = False
        priority.lower(process[0], priority.BOOT_NICENESS)
        self._killed_by_default = _set_oom_score(process[0], FIRST_KILLED)

    @property
    def ready(self) -> bool:
        """Whether it has imported everything."""
        if not self._ready:
            with suppress(OSError):  # BlockingIOError: it has said nothing yet
                self._ready = self._waits_on.recv(len(READY), socket.MSG_DONTWAIT) == READY
        return self._ready

    def become(self, environment: Mapping[str, str]) -> None:
        """Have it become a worker with this environment, in the foreground. Returns once it has read that."""
        if self._killed_by_default is not None:
            _set_oom_score(self.process[0], self._killed_by_default)
        with suppress(OSError), self._waits_on:  # it may have ended
            self._waits_on.sendall(json.dumps(dict(environment)).encode())
        priority.restore(self.process[0])

    def close(self) -> None:
        """Let go of its pipes; one that waits ends of that."""
        self._waits_on.close()
        for descriptor in self.process[1:]:
            os.close(descriptor)


class Standbys:
    """The standbys of a host, by their slots; in elastic mode by any numbers.

    Args:
        processes: starts them.
    """

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._waiting: dict[int, Standby] = {}
        self._useless = False

    @property
    def ready(self) -> int:
        """How many are ready."""
        return sum(standby.ready for standby in self._waiting.values())

    def keep(
        self, slots: Collection[int], command: Sequence[str], environment: Callable[[int], dict[str, str]]
    ) -> None:
        """Have a standby in each of these slots, and in no other.

        Args:
            slots: the slots.
            command: what a worker runs.
            environment: of a standby, by its slot.
        """
        for slot in self._waiting.keys() - set(slots):
            self._waiting.pop(slot).close()
        for slot in sorted(set(slots) - self._waiting.keys()):
            if self._useless:
                return
            ours, theirs = socket.socketpair()
            try:
                variables = {**environment(slot), STANDBY_VARIABLE: str(theirs.fileno())}
                process = self._processes.start(command, variables, inherited=(theirs.fileno(),))
            except (SpawnError, OSError) as error:
                logger.debug("slot %d has no standby: %s", slot, error)
                ours.close()
                return
            finally:
                theirs.close()
            self._waiting[slot] = Standby(process, ours)

    def take(self, slot: int, environment: Mapping[str, str]) -> tuple[int, int, int] | None:
        """Turn the slot's standby into a worker with this environment; returns its process, as Processes.start does.

        Returns None if the slot has no waiting standby.
        """
        standby = self._waiting.pop(slot, None)
        if standby is None:
            return None
        # Not on the event loop: one that still boots reads later, and a socket takes some 200 KiB.
        threading.Thread(target=standby.become, args=(dict(environment),), name="standby", daemon=True).start()
        return standby.process

    def take_ready(self, environment: Mapping[str, str]) -> tuple[int, int, int] | None:
        """The same with any standby that is ready; None if none is."""
        slot = next((slot for slot, standby in self._waiting.items() if standby.ready), None)
        return None if slot is None else self.take(slot, environment)

    def exited(self, pid: int, code: int) -> bool:
        """Take note of a process that has ended; returns whether it was a standby that waited."""
        for slot, standby in self._waiting.items():
            if standby.process[0] == pid:
                del self._waiting[slot]
                with suppress(OSError):
                    standby.close()
                if code == CUDA_INITIALIZED_CODE:
                    self._useless = True
                    logger.warning("there are no standbys: a library initializes CUDA as it is imported")
                return True
        return False


def _set_oom_score(pid: int, value: int) -> int | None:
    """Change how soon the kernel kills a process for want of memory; returns the value before, None if it cannot be
    changed.
    """
    file = Path(f"/proc/{pid}/oom_score_adj")
    try:
        before = int(file.read_text())
        file.write_text(f"{value}\n")
    except (OSError, ValueError):
        return None
    return before
