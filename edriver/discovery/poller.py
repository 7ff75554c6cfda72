"""Asks a host source again and again, and passes on what the filter makes of it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from edriver.discovery.errors import DiscoveryError, UnusableSourceError
from edriver.discovery.hosts import HostSet
from edriver.discovery.poll_filter import PollFilter, Verdict
from edriver.discovery.sources import HostSource
from edriver.text.wire_text import wire_text

_log = logging.getLogger("edriver.discovery")

ERROR_LIMIT: Final = 4000
"""Most characters of what a failed poll says."""


@dataclass(slots=True)
class Polls:
    """How a source has answered so far, for those who watch.

    Attributes:
        answered: how many polls gave an answer that was believed,
        failed: and how many did not.
        seconds: how long the last one took.
        last_answer: when the last answer came that was believed, in seconds since the epoch; None: there was none.
    """

    answered: int = 0
    failed: int = 0
    seconds: float = 0.0
    last_answer: float | None = None

    def add(self, began: float, ended: float, believed: bool) -> None:
        """Count one; times are in seconds since the epoch."""
        self.seconds = max(0.0, ended - began)  # somebody may set the clock
        if believed:
            self.answered += 1
            self.last_answer = ended
        else:
            self.failed += 1


class Poller:
    """Polls one source, one poll at a time. Nothing that a source does ends it.

    Attributes:
        polls: how that has gone so far.
    """

    def __init__(
        self,
        source: HostSource,
        poll_filter: PollFilter,
        interval: float,
        on_observed: Callable[[Verdict], None],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """A poller that has not polled yet.

        Args:
            source: what is asked.
            poll_filter: what decides which hosts are in force; used by this poller alone.
            interval: seconds from the end of one poll to the start of the next, so that polls never overlap.
            on_observed: told every poll's verdict, changed or not. What it raises ends the poller.
            sleep: waits so many seconds.
            clock: seconds since the epoch.
        """
        self._source = source
        self._filter = poll_filter
        self._interval = interval
        self._on_observed = on_observed
        self._sleep = sleep
        self._clock = clock
        self._note = ""
        self.polls = Polls()

    async def first(self) -> HostSet:
        """Poll once, at the start of a run, when there are no hosts yet that a failure could leave in force.

        Returns:
            the hosts; none, if the source answers that there are none yet, or if the poll failed: the next may not.

        Raises:
            UnusableSourceError: the source cannot be used as it is; the message says what to do. This failure is not
                logged, nor passed on as a verdict.
        """
        verdict, error = await self._poll()
        if isinstance(error, UnusableSourceError):
            raise error
        self._report(verdict, error)
        return verdict.hosts

    async def run(self) -> None:
        """Poll until cancelled, beginning one interval from now (`first` makes the poll before that)."""
        while True:
            await self._sleep(self._interval)
            self._report(*await self._poll())

    async def _poll(self) -> tuple[Verdict, Exception | None]:
        began = self._clock()
        verdict, error = await self._ask()
        self.polls.add(began, self._clock(), believed=not verdict.failures)
        return verdict, error

    async def _ask(self) -> tuple[Verdict, Exception | None]:
        try:
            return self._filter.accept(await self._source.find()), None
        except DiscoveryError as error:
            return self._filter.fail(wire_text(str(error), ERROR_LIMIT)), error
        except Exception as error:  # noqa: BLE001  a source may be the user's own
            return self._filter.fail(wire_text(_unexpected(error), ERROR_LIMIT)), error

    def _report(self, verdict: Verdict, error: Exception | None) -> None:
        """Log what is new, once, and pass the verdict on."""
        bug = error if error is not None and not isinstance(error, DiscoveryError) else None
        waits = verdict.error and not verdict.hosts and not bug  # the run says why it waits
        if verdict.note and verdict.note != self._note and not waits:
            _log.log(logging.WARNING if error else logging.INFO, "%s", verdict.note, exc_info=bug)
        self._note = verdict.note
        self._on_observed(verdict)


def _unexpected(error: Exception) -> str:
    return f"the host source raised {error!r}, which is a fault of its own code"
