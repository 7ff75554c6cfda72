"""Says to a broker, again and again, what the run can use."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from edriver.discovery.errors import UnusableSourceError
from edriver.driver.core import events
from edriver.driver.core.membership import Membership
from edriver.driver.launch.broker import Broker, Demand
from edriver.driver.rpc.mailbox import Mailbox

_log = logging.getLogger("edriver.driver")

MEET_INTERVAL: Final = 1.0
"""Seconds from the end of one call of the broker to the next."""


def demand_of(membership: Membership) -> Demand:
    """What the run can use now."""
    state = membership.state
    used = {worker.host for worker in state.roster.workers.values()}
    unused = [name for name, record in state.roster.hosts.items() if record.connected and name not in used]
    return Demand(state.staffing.most, state.settings.min_np, unused)


class BrokerFeed:
    """Calls one broker, one call at a time. No failure of the broker ends it, unless there can be no host at all.

    Args:
        broker: the broker; None: there is none.
        membership: the core.
        inbox: takes the event of a broker that cannot be used.
        sleep: waits for a number of seconds.
    """

    def __init__(
        self,
        broker: Broker | None,
        membership: Membership,
        inbox: Mailbox[events.Event],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._broker = broker
        self._membership = membership
        self._inbox = inbox
        self._sleep = sleep
        self._fault = ""

    async def run(self) -> None:
        """Call it until cancelled."""
        while self._broker is not None:
            try:
                await self._broker.meet(demand_of(self._membership))
            except UnusableSourceError as error:
                self._inbox.put(events.SourceUnusable(str(error)))
                return
            except Exception as error:  # noqa: BLE001  a broker may be the user's own
                if (fault := repr(error)) != self._fault:
                    _log.exception("the broker has failed")
                self._fault = fault
            await self._sleep(MEET_INTERVAL)

    async def close(self) -> None:
        """Have everything given back."""
        if self._broker is not None:
            try:
                await self._broker.close()
            except Exception:  # noqa: BLE001  a broker may be the user's own
                _log.exception("the broker has failed to give its hosts back")
