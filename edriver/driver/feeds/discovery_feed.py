"""Polls a host source; changes become events for the core."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final

from edriver.discovery.errors import DiscoveryError, UnusableSourceError
from edriver.discovery.poll_filter import PollFilter, PollResult, Polls
from edriver.discovery.slot_counts import SlotCounts
from edriver.discovery.sources import HostSource
from edriver.discovery.steadiness import Steadiness
from edriver.driver.feeds.inbound import Inbound
from edriver.driver.feeds.loss_notices import LossNotices
from edriver.driver.feeds.mailbox import Mailbox
from edriver.driver.observe.console.output import ROUTINE
from edriver.model import events
from edriver.model.hosts import HostSet
from edriver.model.limits import MAX_ERROR_LENGTH
from edriver.text.wire_text import wire_text

_log = logging.getLogger("edriver.discovery")

POLL_INTERVAL: Final = 1.0
"""Seconds from the end of one poll to the start of the next, so that polls never overlap."""

CONFIRM_INTERVAL: Final = 0.2
"""The same after an answer without a host that is used: the next one decides whether it leaves. It is longer than most
errors last (a file is read while it is written), and a host that is gone is left within half a second. Where a source
has been wrong for longer, it is POLL_INTERVAL (poll_filter.py)."""

FAILURES_BEFORE_A_WARNING: Final = 3
"""Polls in a row without an answer after which observers are warned: a single one is usual."""

MAX_NOTES: Final = 100
"""Notes that are remembered, so that they are not logged again."""


class DiscoveryFeed:
    """Polls one source, one poll at a time. No failure of the source ends it, unless the source cannot be used at all.

    Args:
        source: the host source.
        inbox: takes the events.
        clock: seconds since the epoch.
        sleep: waits for a number of seconds.
        on_unsteady: called with a host that comes and goes, and how often it has changed, while that lasts.
        on_failing: called after each further poll without an answer with the reason, while the hosts of the last
            answer are used; with "" once there is an answer again. The same where hosts of the answer are left out.
        counts: counts the slots of hosts that have one for each device; None: none of the source's do.
        steady_clock: seconds of a clock that is never set, by which notices of losses are judged.

    Attributes:
        polls: how the source has answered so far.
    """

    def __init__(
        self,
        source: HostSource,
        inbox: Mailbox[Inbound],
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        on_unsteady: Callable[[str, int], None] = lambda _host, _changes: None,
        on_failing: Callable[[str], None] = lambda _why: None,
        counts: SlotCounts | None = None,
        steady_clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._counts = counts
        self._left_out = ""
        self._on_unsteady = on_unsteady
        self._on_failing = on_failing
        self._failing = False
        self._steadiness = Steadiness()
        self._said: set[str] = set()
        self._source = source
        self._inbox = inbox
        self._clock = clock
        self._steady_clock = steady_clock
        self._sleep = sleep
        self._filter = PollFilter()
        self._notices = LossNotices()
        self._answer: HostSet | None = None
        self._note = ""
        self._has_found = False
        self._unanswered = ""
        self.polls = Polls()

    async def run(self) -> None:
        """Poll until cancelled. A source that the first poll finds unusable ends the run at once."""
        verdict, error = await self._poll()
        if isinstance(error, UnusableSourceError):
            self._inbox.put(events.SourceUnusable(str(error)))
            return
        while True:
            self._log_note(verdict, error)
            self._tell_core(verdict)
            self._warn(verdict)
            if self._steadiness.unsteady:
                self._on_unsteady(*self._steadiness.unsteady)
            await self._sleep(CONFIRM_INTERVAL if verdict.ask_soon else POLL_INTERVAL)
            verdict, error = await self._poll()

    async def _poll(self) -> tuple[PollResult, Exception | None]:
        began = self._clock()
        verdict, error = await self._ask()
        self.polls.add(began, self._clock(), believed=not verdict.failures)
        return verdict, error

    async def _ask(self) -> tuple[PollResult, Exception | None]:
        self._answer = None
        try:
            self._answer = answer = await self._source.find()
            self._steadiness.accept(answer)
            if self._counts is not None:
                answer = await self._counts.counted(answer)
            return self._filter.accept(answer), None
        except DiscoveryError as error:
            return self._filter.fail(wire_text(str(error), MAX_ERROR_LENGTH)), error
        except Exception as error:  # noqa: BLE001  a source may be the user's own
            text = f"the host source raised {error!r}: this is a bug in the host source"
            return self._filter.fail(wire_text(text, MAX_ERROR_LENGTH)), error

    def _log_note(self, verdict: PollResult, error: Exception | None) -> None:
        """Log a note when it changes; while hosts come and go, each once."""
        bug = error if error is not None and not isinstance(error, DiscoveryError) else None
        waits = verdict.error and not verdict.hosts and not bug  # the run says why it waits
        if not self._steadiness.unsteady or len(self._said) > MAX_NOTES:
            self._said.clear()
        if verdict.note and verdict.note != self._note and verdict.note not in self._said and not waits:
            self._said.add(verdict.note)
            level = ROUTINE if verdict.hosts and not self._has_found else logging.INFO
            _log.log(logging.WARNING if error else level, "%s", verdict.note, exc_info=bug)
        self._note = verdict.note
        self._has_found = self._has_found or bool(verdict.hosts)

    def _warn(self, verdict: PollResult) -> None:
        failing = bool(verdict.hosts) and verdict.failures >= FAILURES_BEFORE_A_WARNING
        left_out = self._counts.note if self._counts is not None and verdict.hosts else ""
        if left_out and left_out != self._left_out:
            _log.warning("%s", left_out)
        self._left_out = left_out
        why = verdict.error if failing else left_out
        if why or self._failing:
            self._on_failing(why)
        self._failing = bool(why)

    def _tell_core(self, verdict: PollResult) -> None:
        if verdict.error and not verdict.hosts:
            if verdict.error != self._unanswered:
                self._inbox.put(events.DiscoveryFailed(verdict.error))
        elif verdict.changed or self._unanswered:
            self._inbox.put(events.HostsObserved(verdict.hosts))
        if self._answer:
            for event in self._notices.accept(self._answer, verdict.hosts, self._steady_clock()):
                self._inbox.put(event)
        self._unanswered = "" if verdict.hosts else verdict.error
