"""`edriver drain`, `undrain`, `resize`, `stop`: what an operator tells a run that goes on."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Final

from edriver.client import RunError
from edriver.commands.which_run import add_run_flags, client_of
from edriver.text.phrases import count_text

COMMAND_DESCRIPTIONS: Final = {
    "drain": "Have a host, or one slot of it, left at the next agreed step and not used again: nothing is lost.",
    "undrain": "Let a host, or one slot of it, be used again.",
    "resize": "Use at most so many workers from now on, between --min-np and --max-np.",
    "stop": "End the run, as Ctrl-C in its terminal does.",
}
"""What each of them is for."""


def parser(verb: str) -> argparse.ArgumentParser:
    """The flags of one verb."""
    made = argparse.ArgumentParser(prog=f"edriver {verb}", description=COMMAND_DESCRIPTIONS[verb], allow_abbrev=False)
    if verb in ("drain", "undrain"):
        made.add_argument("place", metavar="HOST[:SLOT]", help="as discovery names the host; slots count from 0")
    if verb == "resize":
        made.add_argument("size", metavar="N", type=int, help="most workers")
    if verb in ("drain", "stop"):
        made.add_argument("--reason", default="", metavar="TEXT", help="printed in the run's output")
    add_run_flags(made, "--control-credentials")
    return made


def steer(verb: str, arguments: Sequence[str]) -> str:
    """Carry out one command; returns what to tell the operator.

    Raises:
        RunError: it was not done.
    """
    flags = parser(verb).parse_args(arguments)
    place = _place(flags.place) if "place" in flags else ("", None)
    with client_of(flags) as run:
        match verb:
            case "drain":
                left = count_text(run.drain(*place, flags.reason), "slot")
                done = f"{flags.place} is being drained; there will be {left} to use"
            case "undrain":
                run.undrain(*place)
                done = f"{flags.place} may be used again"
            case "resize":
                run.resize(max(0, flags.size))
                done = f"at most {count_text(flags.size, 'worker')} from now on"
            case _:
                run.stop(flags.reason)
                done = "it is being stopped"
        return f"run {run.run_id}: {done}"


def _place(text: str) -> tuple[str, int | None]:
    host, colon, slot = text.rpartition(":")
    if not colon:
        return text, None
    if not host or not slot.isdecimal():
        raise RunError(f"{text!r} is no HOST or HOST:SLOT")
    return host, int(slot)
