"""Words of the command line that are not flags of edriver: whose they are, and what to use instead."""

from __future__ import annotations

from edriver.cli import horovodrun_flags, torchrun_flags


def refusal_of(word: str) -> str:
    """Why a word of the command line is not a flag, and what to use instead."""
    flag = word.partition("=")[0]
    with_dashes = flag[:2] + flag[2:].replace("_", "-")
    if instead := torchrun_flags.INSTEAD.get(with_dashes):
        return f"{flag} is a flag of torchrun that edriver does not have: {instead}"
    families = horovodrun_flags.FAMILIES.items()
    family = next((instead for beginning, instead in families if flag.startswith(beginning)), "")
    if instead := horovodrun_flags.INSTEAD.get(flag, family):
        return f"{flag} is a flag of horovodrun that edriver does not have: {instead}"
    return f"{word} is not a flag of edriver"
