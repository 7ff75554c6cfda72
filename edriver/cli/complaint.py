"""What the command line says when something cannot be done."""

from __future__ import annotations

import sys

from edriver.text.printable import printable_line


def complain(text: str) -> None:
    """Print one line to stderr. Names of files and what they hold may be part of it, and may be anything."""
    sys.stderr.write(f"{printable_line(text)}\n")
