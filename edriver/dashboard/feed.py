"""Follows a run through its driver's status service, and folds what it hears into a history."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from collections.abc import Callable, Iterable
from typing import Any, Final

import grpc

from edriver.client import AsyncClient, Event, ProgressSample, RunError
from edriver.dashboard.output import MAX_OUTPUT_LINES, page_line
from edriver.runview.history import History
from edriver.text.printable import printable
from edriver.text.stacks_text import stacks_text
from edriver.wire.conversion import epoch_seconds

POLL_INTERVAL: Final = 2.0
"""Seconds between two queries of the run's state, while something happens."""

IDLE_POLL_INTERVAL: Final = 10.0
"""The same while nothing does."""

POLL_PAUSE_FACTOR: Final = 20
"""A query is followed by a pause of at least this many times its duration."""

MAX_STACKS_LENGTH: Final = 1_000_000
"""Characters of workers' stacks after which a page gets no more of them."""

RETRY_INTERVAL: Final = 5.0
"""Seconds after which a driver that was given up is tried again."""


class Feed:
    """Keeps a history up to date.

    Args:
        client: of the run.
        clock: seconds since the epoch.

    Attributes:
        run_id: the run's id.
        history: its history.
        link: "live"; "lost": the driver does not answer; "ended": the run has.
        why: with "lost", why.
    """

    def __init__(self, client: AsyncClient, clock: Callable[[], float]) -> None:
        self._client = client
        self.run_id = client.run_id
        self._clock = clock
        self._ahead = 0.0  # of our clock, the driver's
        self._changed = asyncio.Event()
        self.history = History()
        self.link = "live"
        self.why = ""

    @property
    def changed(self) -> asyncio.Event:
        """Is set at the next change, and then another one takes its place."""
        return self._changed

    @property
    def now(self) -> float:
        """The driver's time."""
        return self._clock() + self._ahead

    async def begin(self) -> None:
        """Take in what has been so far, or what has been missed.

        Raises:
            RunError: the driver does not answer.
        """
        answer = await self._client.snapshot()
        self._ahead = epoch_seconds(answer.run.now) - self._clock()
        last = self.history.view.now
        last_usage = self.history.usage.points[-1][0] if self.history.usage.points else 0.0
        for sample in await self._client.usage_history():
            if epoch_seconds(sample.time) > last_usage:
                self.history.sample_usage(sample)
        samples = [each for each in await self._client.progress_history() if epoch_seconds(each.time) > last]
        try:
            known = await self._client.events(self.history.view.seq)
        except RunError as error:
            if error.code is not grpc.StatusCode.OUT_OF_RANGE:
                raise
            known = []
            self.history.join(answer.run, await self._client.rounds(), answer.seq)
        updates: Iterable[Event | ProgressSample] = heapq.merge(
            known, samples, key=lambda each: each.time.ToNanoseconds()
        )
        for each in updates:
            if isinstance(each, ProgressSample):
                self.history.sample(epoch_seconds(each.time), each.progress)
            else:
                self.history.fold(each)
        self.history.look(answer.run, max(answer.seq, self.history.view.seq))
        self._announce("live")

    async def output(self, host: str, slot: int | None, since: int) -> dict[str, Any]:
        """What workers have written after a line's number, as it goes to the page: the latest, if there is more.

        Args:
            host: on which host; empty: on any.
            slot: in which slot there; None: in any.
            since: the number.
        """
        try:
            lines = [
                line
                async for line in self._client.output(host=host, slot=slot, since=since, lines=MAX_OUTPUT_LINES)
                if line.seq > since
            ]
        except RunError as error:
            return {"lines": [], "why": str(error)}
        return {"lines": [page_line(line) for line in lines], "why": ""}

    async def stacks(self, host: str, slot: int | None) -> dict[str, Any]:
        """Where the threads of workers stand now, as it goes to the page.

        Args:
            host: on which host; empty: on any.
            slot: in which slot there; None: in any.
        """
        texts, length, why = [], 0, ""
        try:
            async for answer in self._client.stacks(host=host, slot=slot):
                texts.append(printable(stacks_text(answer)))
                length += len(texts[-1])
                if length > MAX_STACKS_LENGTH:
                    why = "there are more: edriver stack prints all of them"
                    break
        except RunError as error:
            why = str(error)
        return {"stacks": texts, "why": why, "time": self.now}

    async def follow(self) -> None:
        """Go on until the run has ended; returns at once where it has. A driver that is lost is tried for ever."""
        looking = asyncio.create_task(self._look())
        try:
            while not self.history.view.ended:
                try:
                    await self._watch()
                    if not self.history.view.ended:
                        await self.begin()
                except RunError as error:
                    if error.code is grpc.StatusCode.OUT_OF_RANGE:  # more has happened than the driver remembers
                        with contextlib.suppress(RunError):
                            await self.begin()
                    else:
                        self._announce("lost", str(error))
                    await asyncio.sleep(RETRY_INTERVAL)
        except asyncio.CancelledError:
            self._announce("lost", "it is no longer followed: load the page again")
            raise
        finally:
            looking.cancel()
        self._announce("ended")

    async def _watch(self) -> None:
        async for response in self._client.watch_progress(self.history.view.seq):
            if response.HasField("progress"):
                self.history.sample(self.now, response.progress)
            else:
                self.history.fold(response.event)
            self._announce("live")

    async def _look(self) -> None:
        """Ask now and then for what no event tells; and notice that the driver is silent."""
        while True:
            seq, took = self.history.view.seq, 0.0
            try:
                began = self._clock()
                answer = await self._client.snapshot()
                took = max(0.0, self._clock() - began)
                self._ahead = epoch_seconds(answer.run.now) - self._clock()
                self.history.look(answer.run, answer.seq)
                self._announce("live")
            except RunError as error:
                if not self.history.view.ended:
                    self._announce("lost", str(error))
            pause = max(POLL_INTERVAL, POLL_PAUSE_FACTOR * took)
            await asyncio.sleep(pause)
            if self.history.view.seq == seq:
                await asyncio.sleep(max(0.0, IDLE_POLL_INTERVAL - pause) if self.link == "live" else 0.0)

    def _announce(self, link: str, why: str = "") -> None:
        self.link, self.why = link, why
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
