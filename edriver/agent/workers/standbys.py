"""Standby processes of restart mode: one per slot, which has imported what the slot's script imports, and waits.

The next worker of the slot takes it over, and runs its script at once. A standby is made behind those that train, once
they have had the processor for themselves for a while.

One second after a round began, the agent starts one process per slot, at a lower priority. It imports what the slot's
worker has imported of what is *installed* (each worker writes that down), takes a step with a tiny model, and waits on
a pipe. The next StartWorker for the slot gives it its worker's environment through the pipe instead of starting a
process. Without a standby, or before it is ready, the worker starts cold. The core never hears of standbys.

A standby imports in its predecessor's environment, RANK and its kin included and what the script has set, as a library
may read it while it is imported; after a resize such a library would see the old values. The user's own modules are
left to the script. A standby takes the memory of a process that has imported torch and the script's libraries, 200 MB
and more.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from edriver.agent.workers import priority
from edriver.agent.workers.processes import Processes, SpawnError

logger = logging.getLogger("edriver.agent")

STANDBY_DELAY = 1.0
"""Seconds between the beginning of a round and the start of its slots' standbys: its members make their first steps."""

STANDBY_VARIABLE = "EDRIVER_STANDBY"
"""Names the descriptor on which a standby waits (edriver.worker.restart.standby)."""


@dataclass(frozen=True, slots=True)
class Standby:
    """A standby.

    Attributes:
        process: its process id, and the ends to read of its pipes (Processes.start).
        waits_on: the end to write of the pipe on which it waits.
    """

    process: tuple[int, int, int]
    waits_on: int

    def become(self, environment: Mapping[str, str]) -> None:
        """Have it become a worker with this environment, in the foreground. Returns once it has read that."""
        with suppress(OSError), open(self.waits_on, "wb") as pipe:  # noqa: PTH123  a descriptor; it may have ended
            pipe.write(json.dumps(dict(environment)).encode())
        priority.restore(self.process[0])

    def close(self) -> None:
        """Let go of its pipes; one that waits ends of that."""
        for descriptor in (*self.process[1:], self.waits_on):
            os.close(descriptor)


class Standbys:
    """The standbys of a host, by their slots.

    Args:
        processes: starts them.
    """

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._waiting: dict[int, Standby] = {}

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
            reads, writes = os.pipe()
            try:
                variables = {**environment(slot), STANDBY_VARIABLE: str(reads)}
                process = self._processes.start(command, variables, inherited=(reads,))
            except (SpawnError, OSError) as error:
                logger.debug("slot %d has no standby: %s", slot, error)
                os.close(writes)
                return
            finally:
                os.close(reads)
            priority.lower(process[0], priority.BOOT_NICENESS)
            self._waiting[slot] = Standby(process, writes)

    def take(self, slot: int, environment: Mapping[str, str]) -> tuple[int, int, int] | None:
        """Turn the slot's standby into a worker with this environment; returns its process, as Processes.start does.

        Returns None if the slot has no waiting standby.
        """
        standby = self._waiting.pop(slot, None)
        if standby is None:
            return None
        # Not on the event loop: one that still boots reads later, and a pipe takes 64 KiB.
        threading.Thread(target=standby.become, args=(dict(environment),), name="standby", daemon=True).start()
        return standby.process

    def exited(self, pid: int) -> bool:
        """Take note of a process that has ended; returns whether it was a standby that waited."""
        for slot, standby in self._waiting.items():
            if standby.process[0] == pid:
                del self._waiting[slot]
                with suppress(OSError):
                    standby.close()
                return True
        return False
