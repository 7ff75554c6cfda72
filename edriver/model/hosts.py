"""Hosts: sets of them in order of age, and what changed between two sets. Data."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from edriver.model.frozen import frozen

LOCALHOST: Final = "localhost"
"""This machine's own name for itself."""


@frozen
class Host:
    """A host that workers may run on.

    Attributes:
        name: its name or address; an IPv6 address has no brackets.
        slots: the number of workers that may run on it.
        leaving: the seconds after which it will be lost, according to its source; None: it gives no notice.
    """

    name: str
    slots: int
    leaving: float | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return f"[{self.name}]:{self.slots}" if ":" in self.name else f"{self.name}:{self.slots}"


class Devices(enum.StrEnum):
    """What a host has a slot for each of, where a source names no number: the host itself has to be asked for it."""

    GPU = "gpu"
    CPU = "cpu"
    AUTO = "auto"
    """GPUs, or processor cores on a host without GPUs."""


Slots: TypeAlias = int | Devices
"""The slots of a host as they are written."""


@dataclass(frozen=True, slots=True)
class UncountedHost(Host):
    """A host whose slots have not been counted yet. The core never sees one: see slot_counts.py.

    Attributes:
        slots: 0.
        devices: the kind of device for each of which it has a slot.
    """

    slots: int = 0
    devices: Devices = Devices.AUTO

    def __str__(self) -> str:
        return f"[{self.name}]:{self.devices}" if ":" in self.name else f"{self.name}:{self.devices}"


class HostUpdateResult(enum.IntFlag):
    """What a change of hosts comes to, with Horovod's values: `REMOVED | ADDED` is `MIXED`."""

    NO_UPDATE = 0
    REMOVED = 1
    ADDED = 2
    MIXED = 3

    @classmethod
    def of(cls, added: bool, removed: bool) -> HostUpdateResult:
        """The result of a change in which there are places added, removed, or both."""
        return (cls.ADDED if added else cls.NO_UPDATE) | (cls.REMOVED if removed else cls.NO_UPDATE)


@frozen
class HostDelta:
    """The difference of a HostSet from an earlier one. The age of hosts is not compared.

    Attributes:
        added: hosts that the earlier set lacks.
        removed: hosts that the later set lacks.
        resized: hosts in both whose slots differ, as pairs of (earlier, later).
    """

    added: tuple[Host, ...] = ()
    removed: tuple[Host, ...] = ()
    resized: tuple[tuple[Host, Host], ...] = ()

    @property
    def result(self) -> HostUpdateResult:
        """The change in one word; a host that grew counts as added, one that shrank as removed."""
        grown = any(new.slots > old.slots for old, new in self.resized)
        shrunk = any(new.slots < old.slots for old, new in self.resized)
        return HostUpdateResult.of(added=bool(self.added) or grown, removed=bool(self.removed) or shrunk)

    @property
    def changes(self) -> tuple[str, ...]:
        """Each change in words, additions first: `("added c:2", "removed a:4", "resized b:2 to 1")`."""
        return (
            *(f"added {host}" for host in self.added),
            *(f"removed {host}" for host in self.removed),
            *(f"resized {old} to {new.slots}" for old, new in self.resized),
        )


@frozen
class HostSet:
    """Hosts in order of age, the oldest first. Two sets are equal only if their order is, too.

    Attributes:
        hosts: the hosts; no name occurs twice.

    Raises:
        ValueError: a name occurs twice (code that reads hosts from outside reports that itself).
    """

    hosts: tuple[Host, ...] = ()
    _by_name: dict[str, Host] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_name = {host.name: host for host in self.hosts}
        if len(by_name) != len(self.hosts):
            twice = next(host for host in self.hosts if by_name[host.name] is not host)
            raise ValueError(f"host {twice.name} occurs twice, as {twice} and as {by_name[twice.name]}")
        object.__setattr__(self, "_by_name", by_name)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[Host]:
        return iter(self.hosts)

    def __len__(self) -> int:
        return len(self.hosts)

    def __str__(self) -> str:
        hosts, slots = len(self), self.total_slots
        return f"{hosts} host{'' if hosts == 1 else 's'}, {slots} slot{'' if slots == 1 else 's'}"

    @property
    def names(self) -> tuple[str, ...]:
        """The hosts' names, the oldest host's first."""
        return tuple(self._by_name)

    @property
    def is_counted(self) -> bool:
        """Whether the slots of all hosts are known."""
        return not any(isinstance(host, UncountedHost) for host in self.hosts)

    @property
    def total_slots(self) -> int:
        """The slots of all hosts together, as far as they are known."""
        return sum(host.slots for host in self.hosts)

    def slots(self, name: str) -> int:
        """The slots of one host; 0 if it is not in the set."""
        host = self._by_name.get(name)
        return host.slots if host else 0

    def delta(self, new: HostSet) -> HostDelta:
        """What has changed when `new` takes the place of this set."""
        return HostDelta(
            added=tuple(host for host in new if host.name not in self),
            removed=tuple(host for host in self if host.name not in new),
            resized=tuple((old, new._by_name[old.name]) for old in self if new.slots(old.name) not in (0, old.slots)),
        )

    def aged_by(self, answer: HostSet) -> HostSet:
        """The hosts of `answer` in order of age: those known here in their order here, then newcomers.

        Sources list hosts in any order, and age decides ranks: an answer's own order counts among newcomers
        only.
        """
        known = tuple(answer._by_name[host.name] for host in self if host.name in answer)
        return HostSet(known + tuple(host for host in answer if host.name not in self))
