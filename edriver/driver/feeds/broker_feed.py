"""Tells a broker again and again what the run needs.

Once a second, a broker compares what the run asks for with what it has, so a lost call costs a second and nothing else.
It learns that a host is unused once it has been so for `--idle-timeout`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

from edriver.driver.core.demand import Demand
from edriver.driver.feeds.inbound import Inbound
from edriver.driver.feeds.mailbox import Mailbox
from edriver.driver.launch.broker import Broker, BrokerError, UnusableBrokerError
from edriver.model import events
from edriver.model.limits import MAX_ERROR_LENGTH
from edriver.text.wire_text import wire_text

_log = logging.getLogger("edriver.driver")

RECONCILE_INTERVAL: Final = 1.0
"""Seconds from the end of one call of a broker to the start of the next."""

RECONCILE_TIMEOUT: Final = 60.0
"""Seconds that one call may take."""

CLOSE_TIMEOUT: Final = 10.0
"""Seconds that a broker has to give everything back."""


class UnusedHosts:
    """Keeps hosts for a while after their last use: a size that goes down and up again costs no host.

    Args:
        timeout: seconds for which a host is kept.
        clock: seconds, monotonic.
    """

    def __init__(self, timeout: float, clock: Callable[[], float]) -> None:
        self._timeout = timeout
        self._clock = clock
        self._since: dict[str, float] = {}

    def settled(self, demand: Demand) -> Demand:
        """The demand, with only those of its unused hosts that have been so at each look for as long."""
        now = self._clock()
        self._since = {host: self._since.get(host, now) for host in demand.unused}
        long = tuple(host for host, since in self._since.items() if now - since >= self._timeout)
        return replace(demand, unused=long)


class BrokerFeed:
    """Calls one broker, one call at a time. No failure of the broker ends it, unless the first call finds it unusable.

    Args:
        broker: the broker.
        demand: returns what the run needs now.
        inbox: takes the event that ends the run.
        proven: whether the engine has given hosts to this run before: then nothing that it refuses ends the run.
        sleep: waits for a number of seconds.
    """

    def __init__(
        self,
        broker: Broker,
        demand: Callable[[], Demand],
        inbox: Mailbox[Inbound],
        proven: bool = False,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._broker = broker
        self._demand = demand
        self._inbox = inbox
        self._proven = proven
        self._sleep = sleep
        self._trouble = ""

    async def run(self) -> None:
        """Call it until cancelled."""
        error = await self._reconcile()
        if isinstance(error, UnusableBrokerError) and not self._proven:
            self._inbox.put(events.SourceUnusable(self._trouble))
            return
        while True:
            await self._sleep(RECONCILE_INTERVAL)
            await self._reconcile()

    async def close(self) -> None:
        """Let the broker give everything back; what it cannot is logged."""
        if error := await _error_of(self._broker.close(), CLOSE_TIMEOUT):
            _log.warning("%s", _text_of(error))

    async def _reconcile(self) -> Exception | None:
        error = await _error_of(self._broker.reconcile(self._demand()), RECONCILE_TIMEOUT)
        trouble = "" if error is None else _text_of(error)
        if trouble and trouble != self._trouble and not isinstance(error, UnusableBrokerError):
            _log.warning("%s", trouble, exc_info=None if isinstance(error, (BrokerError, TimeoutError)) else error)
        self._trouble = trouble
        return error


async def _error_of(call: Awaitable[None], bound: float) -> Exception | None:
    try:
        async with asyncio.timeout(bound):
            await call
    except Exception as error:  # noqa: BLE001  a broker may be the user's own
        return error
    return None


def _text_of(error: Exception) -> str:
    if isinstance(error, BrokerError):
        return wire_text(str(error), MAX_ERROR_LENGTH)
    if isinstance(error, TimeoutError):
        return "the engine does not answer: trying again"
    return wire_text(f"the broker raised {error!r}: this is a bug in the broker", MAX_ERROR_LENGTH)
