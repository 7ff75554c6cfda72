"""Suggestions for a command line without -np."""

from __future__ import annotations

import difflib
import os
import shlex
import shutil
from collections.abc import Sequence

from edriver.cli.subcommands import SUBCOMMANDS

_NP_FLAGS = ("-np", "--num-proc")


def hint_of(command: Sequence[str]) -> str | None:
    """What to write instead, if it is one of two mistakes.

    Args:
        command: what was parsed as the program of a worker and its arguments.

    Returns:
        A sentence, if the first word is nearly a subcommand, or if edriver's flags come after the program; else None.
    """
    if not command:
        return None
    word = command[0]
    if os.sep not in word and shutil.which(word) is None:
        near = difflib.get_close_matches(word, [*SUBCOMMANDS, "run", "help"], 1)
        return f"unknown command {word!r}: did you mean `edriver {near[0]}`?" if near else None
    at = next((at for at, each in enumerate(command) if each in _NP_FLAGS), None)
    if at is None:
        return None
    own, rest = command[at : at + 2], [*command[:at], *command[at + 2 :]]
    return (
        f"{own[0]} comes after the program, which would receive it. Put edriver's flags first: "
        f"`edriver {shlex.join([*own, *rest])}`"
    )
