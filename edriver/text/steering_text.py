"""Texts for an operator whose request the driver has accepted, on the command line and on the page."""

from __future__ import annotations

from typing import Final

from edriver.text.phrases import count_text

STOPPED_TEXT: Final = "it is being stopped"


def drained_text(place: str, slots_left: int) -> str:
    """After a drain of a host, or of HOST:SLOT."""
    return f"{place} is being drained; there will be {count_text(slots_left, 'slot')} to use"


def undrained_text(place: str) -> str:
    """After an undrain of the same."""
    return f"{place} may be used again"


def resized_text(size: int) -> str:
    """After a resize."""
    return f"at most {count_text(size, 'worker')} from now on"
