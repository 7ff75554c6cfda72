"""How long a scrape may take. Apart from prometheus_client, for `edriver --explain`."""

from __future__ import annotations

from typing import Final

ANSWER_TIMEOUT: Final = 5.0
"""Seconds that the driver has to provide the values."""

REQUEST_TIMEOUT: Final = 10.0
"""Seconds that a whole request may take, however little of it is silence."""

IDLE_TIMEOUT: Final = 5.0
"""Seconds that a scraper may keep its side of a connection still."""
