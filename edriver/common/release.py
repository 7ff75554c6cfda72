"""Which edriver this is. The driver and all agents of a run must be the same one."""

from __future__ import annotations

TYPE_CHECKING = False  # as in __init__.py
if TYPE_CHECKING:
    from typing import Final

VERSION: Final = "0.1.0"
