"""Renews a driver's claim to its journal, again and again, until it is let go or lost."""

from __future__ import annotations

import threading
from collections.abc import Callable

from edriver.driver.journal.journal import JournalLostError


class Renewal:
    """Renews a claim in a separate thread: the event loop may be blocked for longer than the claim is valid.

    Args:
        renew: renews the claim once, or raises JournalLostError.
        period: the seconds between two renewals.
    """

    def __init__(self, renew: Callable[[], None], period: float) -> None:
        self._renew = renew
        self._period = period
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="journal-renewal", daemon=True)
        self._changing = threading.Lock()
        self._leave: Callable[[JournalLostError], None] = lambda _: None
        self._lost: JournalLostError | None = None

    def start(self) -> None:
        """Renew it from now on."""
        self._thread.start()

    def on_lost(self, leave: Callable[[JournalLostError], None]) -> None:
        """Have this called, from any thread, when the claim is lost; at once, if it is lost already."""
        with self._changing:
            self._leave = leave
            lost = self._lost
        if lost is not None:
            leave(lost)

    def end(self) -> None:
        """Renew it no more."""
        self._ended.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(self._period):
            try:
                self._renew()
            except JournalLostError as error:
                with self._changing:
                    self._lost = error
                    leave = self._leave
                leave(error)
                return
