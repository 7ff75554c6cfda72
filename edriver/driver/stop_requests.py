"""Who wants the run to end: signals to the driver, and operators."""

from __future__ import annotations

import asyncio
import logging
import signal

from edriver.driver.core import events
from edriver.driver.rpc.mailbox import Mailbox

_log = logging.getLogger("edriver.driver")


class StopRequests:
    """Turns the first request into an event; a signal after it, or after the run has ended, means at once.

    Args:
        inbox: takes the event.

    Attributes:
        signal: by which the run was stopped, SIGTERM for an operator's word; None: it was not.
        hurry: set when the operator does not want to wait.
    """

    def __init__(self, inbox: Mailbox[events.Event]) -> None:
        self._inbox = inbox
        self._ending = False
        self.signal: signal.Signals | None = None
        self.hurry = asyncio.Event()

    def watch_signals(self) -> None:
        """From now on take signals, in the running event loop."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup means it
                asyncio.get_running_loop().add_signal_handler(number, self._signalled, number)

    def stop(self, reason: str) -> None:
        """An operator wants the run to end."""
        if not self._ending and self.signal is None:
            self.signal = signal.SIGTERM  # it ends as by this one
            _log.info("stopping the workers: %s", reason)
            self._inbox.put(events.StopRequested(reason))

    def note_end(self) -> None:
        """The run ends: nothing is to be stopped any more."""
        self._ending = True

    def _signalled(self, number: signal.Signals) -> None:
        """The first signal ends the run in good order, the second at once."""
        if self._ending or self.signal is not None:
            if not self.hurry.is_set():
                _log.info("%s again: ending at once", number.name)
            self.hurry.set()
            return
        self.signal = number
        _log.info("%s: stopping the workers (once more: at once)", number.name)
        self._inbox.put(events.StopRequested(f"the driver got {number.name}"))
