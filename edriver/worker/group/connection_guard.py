"""Members of a guarded round name their connections to one another, through the round's store, which only they can use.

What a member has named is read; what comes over any other connection never reaches Gloo (guarded_devices.py).
A process that is not a member can thus take a member's place only in the moment before its device has a filter. It
takes some 0.2 s for each time that a member waits for one which waits in turn, and is done once a run has met such a
process.

The kernel drops the data by a filter that a connection has from its listener (without filters: until some megabytes
wait). What was dropped is sent again after 0.2 s, so that a round of 4 workers takes 0.2 to 0.4 s to build, one of 8 up
to 0.7 s; hence rounds of runs that have met no such process are not guarded. The proof (proven_pairs.py) is made all
the same: a device exists for a moment before its filter does. What an attacker who never gives up can still cost:

* one round: 5 s with silence, with anything else the moment that a round takes to form again; and a worker of it, with
  a header that Gloo (torch 2.13) answers by ending its process. Of two ranks the one with the higher address and port
  connects, and cannot be met so: at least one member survives, and it holds the state;
* a further round each time that it calls a device in that moment. A device that has been called so early is given up
  and made again, up to 100 times, but a process that looks for listeners all the time, on a separate processor, is
  often fast enough: it ended 86 of the 149 rounds of a run in which each worker connected 50 ms late. The run gets on
  between them, the more slowly for the pauses; if none succeeds for --elastic-timeout, it ends;
* a worker, by as many silent connections as it may have descriptors, while a group is being built.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from edriver.model.ids import RoundId
from edriver.worker.backend.gloo import guarded_devices
from edriver.worker.backend.gloo.guarded_devices import Address, GuardedDevice
from edriver.worker.backend.gloo.sever import gloo_devices
from edriver.worker.group.store import StoreClient

logger = logging.getLogger("edriver.worker")

POLL_INTERVAL: Final = 0.005
"""Seconds between two looks at this process's connections, at least;"""

POLL_INTERVAL_PER_MEMBER: Final = 0.0005
"""and for each member of the round, since all of them ask one store."""

_NONE: Final = "-"
"""What a store that compares answers for a key that is not set: what was expected. No caller is called so."""


class ConnectionGuard:
    """Names this process's connections in a round, and admits those that others have named.

    Args:
        round_id: the round.
        size: the number of its members.
        connect: opens a connection to the round's store for the exclusive use of this object.
    """

    def __init__(self, round_id: RoundId, size: int, connect: Callable[[], StoreClient]) -> None:
        self._prefix = f"guard/{round_id}"
        self._interval = max(POLL_INTERVAL, size * POLL_INTERVAL_PER_MEMBER)
        self._connect = connect
        self._store: StoreClient | None = None
        self._devices: dict[int, Address] = {}
        self._named: set[int] = set()
        self._admitted: set[int] = set()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def guard(self) -> list[GuardedDevice]:
        """Make the devices of a new group, and begin to name and admit their connections. Main thread only.

        Raises:
            RuntimeError: Gloo's devices cannot be found.
        """
        made = guarded_devices.make_devices()
        self.rest()
        if self._store is None:
            self._store = self._connect()
        self._devices |= {device.listener: device.address for device in made}
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(self._store, self._stopped), name="edriver-guard", daemon=True
        )
        self._thread.start()
        return made

    def rest(self) -> None:
        """The group has been built: name and admit no more connections until the next one is."""
        self._stopped.set()

    def close(self) -> None:
        """The round is over. Main thread only."""
        if self._store is not None:
            self._store.sever()  # frees the thread, if it waits for an answer
        self.rest()
        if self._thread is not None:
            self._thread.join()
        if self._store is not None:
            self._store.close()
            self._store = None

    def _run(self, store: StoreClient, stopped: threading.Event) -> None:
        try:
            while not stopped.wait(self._interval):
                self._look(store)
        except RuntimeError as error:  # what a store raises; the group's own connection to it meets the same
            logger.debug("connections are no longer named: %s", error)

    def _look(self, store: StoreClient) -> None:
        for inode, device in gloo_devices().items():
            if inode not in self._devices:
                continue
            address = self._devices[inode]
            for made in guarded_devices.callees(device, address):
                if made.descriptor.inode not in self._named:
                    store.append(self._key(made.far), f"{_text(made.near)}\n")
                    self._named.add(made.descriptor.inode)
            named = set(store.compare_set(self._key(address), _NONE, _NONE).decode().splitlines())
            for caller in guarded_devices.callers(device, address):
                if _text(caller.far) in named and caller.descriptor.inode not in self._admitted:
                    guarded_devices.listen_to(caller)
                    self._admitted.add(caller.descriptor.inode)

    def _key(self, address: Address) -> str:
        """Under which the callers of a device are named that listens there, a line each."""
        return f"{self._prefix}/{_text(address)}"


def _text(address: Address) -> str:
    return f"{address[0]} {address[1]}"
