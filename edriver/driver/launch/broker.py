"""The seam for asking an engine (Slurm, Ray, Kubernetes) for hosts, and for giving them back. Only `broker_feed.py`
uses one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from edriver.discovery.sources import HostSource
from edriver.driver.core.demand import Demand

BROKER_ENTRY_POINTS: Final = "edriver.brokers"
"""The entry points of brokers: each names a callable that takes a BrokerContext and returns a Broker."""


class BrokerError(Exception):
    """The engine cannot be asked. The message is a sentence for the operator: what is wrong, and what to do."""


class UnusableBrokerError(BrokerError):
    """The engine will refuse every request until the command line changes, for example for an unknown partition."""


class Broker(Protocol):
    """Keeps what the engine gives in line with what the run needs: one object for a run, used in the driver's event
    loop alone.
    """

    async def reconcile(self, demand: Demand, /) -> None:
        """Ask for what is missing, and give back hosts that are unused. Called once a second, one call at a time.

        A call compares what there is with what is needed, and counts on no earlier call. It may be cancelled.

        Raises:
            BrokerError: the engine cannot be asked now, with the reason; it is asked again.
            UnusableBrokerError: it never can; in the first call this ends the run.
        """
        ...

    async def close(self) -> None:
        """Give everything back: the run has ended, and its agents with it. It has 10 s for that.

        Raises:
            BrokerError: something is left, with a sentence that says what, and how to remove it.
        """
        ...


@dataclass(frozen=True, slots=True)
class BrokerContext:
    """What a broker is made from.

    Attributes:
        run_id: the run.
        argument: what the operator has written after the broker's name and `=`; empty: nothing.
        slots_per_host: the slots of a host for which the broker knows none.
        credentials: the file with the credentials of hosts that dial in; None: no hosts dial in.
        driver: returns the driver's address, HOST:PORT, for agents that dial in. Valid from the first `reconcile`
            on, if hosts dial in.
        source: the run's host source, for a broker that comes with it.
    """

    run_id: str
    argument: str
    slots_per_host: int
    credentials: Path | None
    driver: Callable[[], str]
    source: HostSource | None = None


class BrokerChoice(NamedTuple):
    """The operator's choice of a broker.

    Attributes:
        make: makes it.
        argument: see BrokerContext,
        slots_per_host: and there.
        idle_timeout: seconds without use after which a host is given back.
    """

    make: Callable[[BrokerContext], Broker]
    argument: str
    slots_per_host: int
    idle_timeout: float
