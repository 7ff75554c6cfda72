"""`edriver drain`, `undrain`, `resize`, `stop`: how an operator controls a run."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Final

import grpc

from edriver.client import Client, RunError
from edriver.commands.which_run import add_run_flags, client_of
from edriver.text.command_parser import CommandParser, seconds_between
from edriver.text.steering_text import STOPPED_TEXT, drain_preview_text, drained_text, resized_text, undrained_text

MAX_WITHIN: Final = 7 * 24 * 3600.0
"""Most seconds that a drain may take."""

COMMAND_DESCRIPTIONS: Final = {
    "drain": "Stop using a host, or one of its slots. No step is lost. Where other slots are free, its workers train "
    "on until replacements are ready, and change places with them at one agreed step.",
    "undrain": "Use a drained host, or one of its slots, again.",
    "resize": "Set the maximum number of workers from now on, between --min-np and --max-np.",
    "stop": "End the run, as Ctrl-C in its terminal does.",
}
"""What each of them is for."""


def parser(verb: str) -> argparse.ArgumentParser:
    """The flags of one verb."""
    made = CommandParser(prog=f"edriver {verb}", description=COMMAND_DESCRIPTIONS[verb])
    if verb in ("drain", "undrain"):
        made.add_argument(
            "place",
            metavar="HOST[:SLOT]",
            help="the host, as discovery names it, and optionally a slot, counted from 0",
        )
    if verb == "resize":
        made.add_argument("size", metavar="N", type=_size, help="maximum number of workers")
    if verb in ("drain", "stop"):
        made.add_argument("--reason", default="", metavar="TEXT", help="the reason, printed in the output of the run")
    if verb == "drain":
        made.add_argument(
            "--within",
            type=seconds_between(0, MAX_WITHIN),
            metavar="SECONDS",
            help="its workers have left by then, also if replacements are not ready; 0: at the next agreed step "
            "(by default as long as the run waits for workers: --elastic-timeout)",
        )
        made.add_argument(
            "--dry-run", action="store_true", help="say whether training would pause, and for how long; change nothing"
        )
    add_run_flags(made, "--control-credentials")
    return made


def steer(verb: str, arguments: Sequence[str]) -> str:
    """Carry out one command; returns the text to print.

    Raises:
        RunError: it was not done.
    """
    flags = parser(verb).parse_args(arguments)
    place = _place(flags.place) if "place" in flags else ("", None)
    with client_of(flags) as run:
        match verb:
            case "drain":
                expected = _preview(run, *place, flags.within)
                if flags.dry_run:
                    done = f"a drain of {flags.place}: {expected}"
                else:
                    done = drained_text(flags.place, run.drain(*place, flags.reason, flags.within))
                    done += f": {expected}" if expected else ""
            case "undrain":
                run.undrain(*place)
                done = undrained_text(flags.place)
            case "resize":
                run.resize(max(0, flags.size))
                done = resized_text(flags.size)
            case _:
                run.stop(flags.reason)
                done = STOPPED_TEXT
        return f"run {run.run_id}: {done}"


def _preview(run: Client, host: str, slot: int | None, within: float | None) -> str:
    """What a drain does; empty if the run's driver is of an earlier release, which cannot tell."""
    try:
        return drain_preview_text(run.preview_drain(host, slot, within))
    except RunError as error:
        if error.code is grpc.StatusCode.UNIMPLEMENTED:
            return ""
        raise


def _size(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def _place(text: str) -> tuple[str, int | None]:
    host, colon, slot = text.rpartition(":")
    if not colon:
        return text, None
    if not host or not slot.isdecimal():
        raise RunError(f"{text!r} is neither HOST nor HOST:SLOT")
    return host, int(slot)
