"""The parser of a subcommand's flags. What it refuses it answers with what was probably meant."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any

from edriver.text.suggestion import did_you_mean


class CommandParser(argparse.ArgumentParser):
    """Reads the flags of `edriver WORD`; flags are not abbreviated.

    Args:
        prog: the command, as the user writes it.
        description: what it does.
    """

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(prog=prog, description=description, allow_abbrev=False)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Read them; exits with a usage message if they are wrong."""
        flags, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self.error(self._refusal_of(unknown[0]))
        return flags

    def _refusal_of(self, word: str) -> str:
        known = self._option_string_actions
        if word.startswith("-"):
            return f"{word} is not a flag of {self.prog}{did_you_mean(word.partition('=')[0], known)}"
        meant = f": did you mean --run {word}?" if "--run" in known else ""
        return f"{self.prog} does not expect {word!r}{meant}"


def seconds_between(least: float, most: float) -> Callable[[str], float]:
    """The `type` of a flag that takes a number of seconds within these limits."""

    def seconds(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from {least:g} to {most:g}")
        return value

    return seconds
