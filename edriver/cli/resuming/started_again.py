"""How a driver knows that it goes on from another one, and that its command line has not been given again."""

from typing import Final

STARTED_AGAIN: Final = "EDRIVER_STARTED_AGAIN"
"""Set for a driver that a supervisor starts after another one was killed. If that had been asked to end, all ends."""
