"""What to write instead: of words that are no flags of edriver, and of a command line without -np."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterable, Sequence

from edriver.cli import horovodrun_flags, torchrun_flags
from edriver.cli.subcommands import SUBCOMMANDS
from edriver.text.suggestion import did_you_mean, nearest

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
        near = nearest(word, [*SUBCOMMANDS, "run", "help"])
        return f"unknown command {word!r}: did you mean `edriver {near}`?" if near else None
    at = next((at for at, each in enumerate(command) if each in _NP_FLAGS), None)
    if at is None:
        return None
    own, rest = command[at : at + 2], [*command[:at], *command[at + 2 :]]
    return (
        f"{own[0]} comes after the program, which would receive it. Put edriver's flags first: "
        f"`edriver {shlex.join([*own, *rest])}`"
    )


def refusal_of(word: str, flags: Iterable[str] = ()) -> str:
    """Why a word of the command line is not a flag, and what to use instead.

    Args:
        word: the word.
        flags: the flags that there are.
    """
    flag = word.partition("=")[0]
    with_dashes = flag[:2] + flag[2:].replace("_", "-")
    if instead := torchrun_flags.INSTEAD.get(with_dashes):
        return f"{flag} is a flag of torchrun that edriver does not have: {instead}"
    families = horovodrun_flags.FAMILIES.items()
    family = next((instead for beginning, instead in families if flag.startswith(beginning)), "")
    if instead := horovodrun_flags.INSTEAD.get(flag, family):
        return f"{flag} is a flag of horovodrun that edriver does not have: {instead}"
    return f"{word} is not a flag of edriver{did_you_mean(with_dashes, flags)}"
