"""The seam for asking an engine for hosts: what a broker does, and what it is given. Optional: a source may suffice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

BROKER_ENTRY_POINTS: Final = "edriver.brokers"
"""The entry points of brokers: each names a callable that takes a BrokerContext and returns a Broker."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What the run can use of an engine.

    Attributes:
        slots: how many slots it can use in all.
        needed: below how many it cannot train.
        unused: the hosts of which no slot is used, the oldest first.
    """

    slots: int
    needed: int
    unused: Sequence[str] = ()


class Broker(Protocol):
    """Asks an engine for more hosts, and gives back what is not needed: one object for a run."""

    async def meet(self, demand: Demand) -> None:
        """Do what brings the hosts nearer to the demand. Called about once a second, never two at a time.

        Raises:
            UnusableSourceError: the first call has found that the engine will never give any host; the run ends.
        """
        ...

    async def close(self) -> None:
        """The run has ended: give everything back."""
        ...


@dataclass(frozen=True, slots=True)
class BrokerContext:
    """What a broker is made from.

    Attributes:
        argument: what the operator has named: a partition, a queue.
        arguments: more arguments for the engine's own commands.
        run_id: the run.
        slots_per_host: how many workers a host takes.
        driver: returns HOST:PORT at which agents that dial in reach the driver.
        credentials: the file with their credentials.
    """

    argument: str
    arguments: tuple[str, ...]
    run_id: str
    slots_per_host: int
    driver: Callable[[], str]
    credentials: Path


@dataclass(frozen=True, slots=True)
class BrokerChoice:
    """The broker that the operator has chosen, and what it is made from that is known before the run begins.

    Attributes:
        make: makes it.
        argument: see BrokerContext; so are those that follow.
    """

    make: Callable[[BrokerContext], Broker]
    argument: str
    arguments: tuple[str, ...]
    slots_per_host: int

    def of(self, run_id: str, driver: Callable[[], str], credentials: Path) -> Broker:
        """The broker of a run."""
        made_from = (self.argument, self.arguments, run_id, self.slots_per_host, driver, credentials)
        return self.make(BrokerContext(*made_from))
