"""The slots of hosts that have one for each GPU or core: each host is asked once, when it is listed.

A host that does not answer, or has no such device, is left out until it does, and holds up no other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from edriver.discovery.errors import DiscoveryError, UnusableSourceError
from edriver.discovery.hosts import MAX_WRITTEN_SLOTS
from edriver.model.hosts import Devices, Host, HostSet, UncountedHost
from edriver.text.phrases import count_text

ANSWER_WAIT: Final = 2.0
"""Seconds that an answer of the source waits for new hosts' counts, so that they come into force together."""

ASK_INTERVAL: Final = 10.0
"""Seconds after which a host that is left out is asked again."""


@dataclass(frozen=True, slots=True)
class DeviceCount:
    """What a host has for workers.

    Attributes:
        gpus: the GPUs that they may use.
        cores: the processor cores that they may run on.
    """

    gpus: int
    cores: int

    def slots(self, devices: Devices) -> int:
        """The number of slots for these devices; 0 without any."""
        found = {Devices.GPU: self.gpus, Devices.CPU: self.cores, Devices.AUTO: self.gpus or self.cores}[devices]
        return min(found, MAX_WRITTEN_SLOTS)


Ask: TypeAlias = Callable[[str], Awaitable[DeviceCount]]
"""Asks a host by its name. Raises DiscoveryError if the host does not answer within the time limit of the call."""


@dataclass(slots=True)
class _Asked:
    """A host whose slots are counted.

    Attributes:
        devices: what is counted.
        slots: the result; 0: none yet.
        reason: why there is none; empty: there is, or the host has not answered yet.
        has_none: whether it has answered that it has no such device.
        again: when to ask again, if there is none.
        asking: the question under way.
    """

    devices: Devices
    slots: int = 0
    reason: str = ""
    has_none: bool = False
    again: float = 0.0
    asking: asyncio.Task[DeviceCount] | None = None


class SlotCounts:
    """Puts numbers in the place of devices in a source's answers.

    A host is asked once, and again when it has been off the list: slots do not change under a run because a GPU fails.

    Args:
        ask: asks a host.
        clock: seconds, monotonic.
        known: the slots that a host has in the run already, as after another driver; 0: it is new.
        needed: how many slots a list of hosts that cannot change must have; None: it may change.

    Attributes:
        note: which hosts are left out, and why; empty: none are.
    """

    def __init__(
        self,
        ask: Ask,
        clock: Callable[[], float],
        known: Callable[[str], int] = lambda _name: 0,
        needed: int | None = None,
    ) -> None:
        self.note = ""
        self._ask = ask
        self._clock = clock
        self._known = known
        self._needed = needed
        self._hosts: dict[str, _Asked] = {}

    async def counted(self, answer: HostSet, wait: float | None = ANSWER_WAIT) -> HostSet:
        """The answer, with a number of slots for each host, in its own order; without those left out.

        Args:
            answer: what a source has found.
            wait: seconds to wait for hosts that are new; None: until all have answered.

        Raises:
            DiscoveryError: all of its hosts are left out.
            UnusableSourceError: of a list that cannot change, in its first answer: a host has no such device, or all
                hosts together have too few slots.
        """
        if not self._hosts and all(host.slots for host in answer):  # the usual case, each second
            return answer
        first, listed = not self._hosts, {host.name: host for host in answer if isinstance(host, UncountedHost)}
        for name in self._hosts.keys() - listed.keys():
            if (task := self._hosts.pop(name).asking) is not None:
                task.cancel()
        for host in listed.values():
            self._begin(host)
        if asking := [asked.asking for asked in self._hosts.values() if asked.asking is not None]:
            await asyncio.wait(asking, timeout=wait)
        for asked in self._hosts.values():
            self._take(asked)
        self.note = "; ".join(_left_out(name, asked) for name, asked in self._hosts.items() if not asked.slots)
        needed = self._needed if first else None
        if needed is not None and any(asked.has_none for asked in self._hosts.values()):
            raise UnusableSourceError(self.note)
        hosts = [Host(host.name, self._slots(host), host.leaving) for host in answer]
        found = HostSet(tuple(host for host in hosts if host.slots))
        if needed is not None and listed and not self.note and found.total_slots < needed:
            raise UnusableSourceError(
                f"{', '.join(map(str, found))}: the run needs {count_text(needed, 'slot')} (--min-np, by default "
                f"-np): add hosts, or give --min-np {found.total_slots}"
            )
        if listed and not found:
            raise DiscoveryError(self.note)
        return found

    def _begin(self, host: UncountedHost) -> None:
        """Ask a host that is new, or was left out long enough; or that counts something else now."""
        asked = self._hosts.get(host.name)
        if asked is None:
            asked = self._hosts[host.name] = _Asked(host.devices, slots=self._known(host.name))
        elif asked.devices is not host.devices:
            asked.devices, asked.slots, asked.again = host.devices, 0, 0.0
        if not asked.slots and asked.asking is None and self._clock() >= asked.again:
            asked.asking = asyncio.ensure_future(self._ask(host.name))

    def _take(self, asked: _Asked) -> None:
        if asked.asking is None or not asked.asking.done():
            return
        task, asked.asking = asked.asking, None
        asked.again = self._clock() + ASK_INTERVAL
        try:
            asked.slots = task.result().slots(asked.devices)
            asked.has_none = not asked.slots
            asked.reason = _NONE_TEXTS[asked.devices] if asked.has_none else ""
        except DiscoveryError as error:
            asked.reason = str(error)

    def _slots(self, host: Host) -> int:
        asked = self._hosts.get(host.name)
        return host.slots if asked is None else asked.slots


_NONE_TEXTS: Final = {
    Devices.GPU: "it has no NVIDIA GPUs that workers may use (/dev/nvidia0, CUDA_VISIBLE_DEVICES): give a number of "
    "slots, or auto, which counts cores where there are no GPUs",
    Devices.CPU: "it reports no processor cores",
    Devices.AUTO: "it reports neither GPUs nor processor cores",
}


def _left_out(name: str, asked: _Asked) -> str:
    what = {Devices.GPU: "GPUs", Devices.CPU: "cores", Devices.AUTO: "devices"}[asked.devices]
    reason = asked.reason or f"it has not reported yet how many {what} it has"
    return f"host {name} is not used: {reason}"
