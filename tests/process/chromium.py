"""Debian's Chromium, as tests and benchmarks start it."""

from __future__ import annotations

import shutil
from typing import Final

CHROMIUM: Final = shutil.which("chromium") or "/usr/bin/chromium"

FLAGS: Final = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    "--disable-background-networking",
]
"""No window, no GPU, and no connection except to the page's own server."""
