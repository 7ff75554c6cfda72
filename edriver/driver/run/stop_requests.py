"""Requests to end the run: signals to the driver, and operators."""

from __future__ import annotations

import asyncio
import logging
import math
import signal
import time
from collections.abc import Callable
from typing import Final

from edriver.driver.feeds.inbound import Inbound
from edriver.driver.feeds.mailbox import Mailbox
from edriver.driver.observe.cause_text import cause_text
from edriver.model import events
from edriver.model.cause import Cause, CauseKind, ReportedText

_log = logging.getLogger("edriver.driver")

COPY_WINDOW: Final = 0.5
"""Seconds after a signal within which others are copies of it: the terminal sends Ctrl-C to all of its processes, and a
wrapper or a supervisor passes on what it gets. People take longer to ask again."""

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
"""Signals that stop a run. SIGUSR1 is how batch systems announce the end of a job's time (Slurm's --signal)."""


def handle_signals(handler: Callable[[signal.Signals], None]) -> None:
    """From now on have this called with each signal that stops a run, in the running event loop."""
    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup means it
            loop.add_signal_handler(number, handler, number)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)  # a supervisor has had them wait until now


class StopRequests:
    """Turns the first request into an event; a signal after it, or after the run has ended, means at once.

    Args:
        inbox: takes the event.
        clock: seconds, monotonic.

    Attributes:
        signal: the signal that stopped the run, SIGTERM for an operator's request; None: it was not stopped.
        requested: whether anything has asked this driver for the end.
        hurry: set when the operator does not want to wait.
    """

    def __init__(self, inbox: Mailbox[Inbound], clock: Callable[[], float] = time.monotonic) -> None:
        self._inbox = inbox
        self._clock = clock
        self._signalled = -math.inf
        self._ending = False
        self._asked = False  # by a signal, while it ended of its own accord
        self.signal: signal.Signals | None = None
        self.requested = False
        self.hurry = asyncio.Event()

    def watch_signals(self) -> None:
        """From now on take signals, in the running event loop."""
        handle_signals(self.signalled)

    def stop(self, reason: str, requester: str) -> None:
        """An operator has requested the end of the run; the reason and the requester may be empty."""
        self.requested = True
        if not self._ending and self.signal is None:
            self.signal = signal.SIGTERM  # it ends as by this one
            wish = Cause(CauseKind.STOPPED, detail=ReportedText(reason), requester=requester)
            _log.info("stopping the workers: %s", cause_text(wish))
            self._inbox.put(events.StopRequested(reason, requester))

    def note_end(self) -> None:
        """The run ends: later requests have no effect."""
        self._ending = True

    def signalled(self, number: signal.Signals) -> None:
        """The first signal ends the run gracefully, one that follows later than its copies do at once.

        A run that has come to its end may still write its last checkpoint: the first signal does not cut that either.
        """
        now = self._clock()
        self.requested = True
        if now - self._signalled < COPY_WINDOW:
            _log.debug("%s: a copy of %s", number.name, self.signal)
            return
        self._signalled = now
        if self._ending and self.signal is None and not self._asked:
            self._asked = True
            _log.info("%s: the run is ending (send it again to end it at once)", number.name)
            return
        if self._ending or self.signal is not None:
            if not self.hurry.is_set():
                _log.info("%s again: ending at once", number.name)
            self.hurry.set()
            return
        self.signal = number
        _log.info("%s: stopping the workers (send it again to kill them at once)", number.name)
        self._inbox.put(events.StopRequested(f"the driver received {number.name}"))
