"""One flag of `edriver`, as data."""

from __future__ import annotations

import argparse
from typing import Any


class Flag:
    """What argparse adds to a parser.

    Args:
        names: its names, the short one first.
        options: what ArgumentParser.add_argument takes beside them.
    """

    def __init__(self, *names: str, **options: Any) -> None:
        self.names = names
        self.options = options

    def add_to(self, group: argparse._ActionsContainer) -> None:
        """Have a parser, or a group of its flags, take it."""
        group.add_argument(*self.names, **self.options)
