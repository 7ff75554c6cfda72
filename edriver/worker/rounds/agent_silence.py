"""A worker that waits for its agent, which may be gone without a trace."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from edriver.common.lease import Lease

logger = logging.getLogger("edriver.worker")

SILENCE_BOUND: Final = 30.0
"""Seconds without a word from the agent (it speaks every 4 s at least) after which a waiting worker gives up."""


class AgentSilence:
    """Looks again and again whether the agent still speaks.

    Args:
        last_word: when its last word came.
    """

    def __init__(self, last_word: Callable[[], float]) -> None:
        self._last_word = last_word
        self._heard = last_word()
        self._lease = Lease(SILENCE_BOUND, time.monotonic)

    def look(self) -> None:
        """Look once. It is looks that count: a word may lie unread if this process itself was stopped.

        Raises:
            SystemExit: the agent has been silent for too long; nothing would ever come.
        """
        if self._heard != self._last_word():
            self._heard = self._last_word()
            self._lease.renew()
        if self._lease.tick():
            logger.error("no message from the agent for %g s: this worker ends", SILENCE_BOUND)
            raise SystemExit(1)
