"""The defaults of flags, in seconds: the parser, the judged options and the documentation read them here."""

from __future__ import annotations

from typing import Final

START_TIMEOUT: Final = 30.0
ELASTIC_TIMEOUT: Final = 600.0
EXIT_TIMEOUT: Final = 600.0
WORKER_LEASE: Final = 5.0
DRIVER_TIMEOUT: Final = 600.0
HOST_IDLE_TIMEOUT: Final = 30.0
