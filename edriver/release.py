"""Which edriver this is. The driver and all agents of a run must be the same one."""

from __future__ import annotations

from typing import Final

VERSION: Final = "0.1.0"
