"""`edriver top`: a run on one screen, which follows it until it ends."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from edriver.client import RunError
from edriver.commands.which_run import add_run_flags, client_of
from edriver.common.extras import missing_extra
from edriver.text.command_parser import CommandParser


def parser() -> argparse.ArgumentParser:
    """The flags."""
    made = CommandParser(
        prog="edriver top",
        description="Shows a run live until it ends or you press q. Tab switches between parts, arrow keys scroll.",
    )
    add_run_flags(made, "--status-credentials")
    return made


def top(arguments: Sequence[str]) -> str:
    """Show a run until it ends; returns how it ended.

    Raises:
        RunError: the driver does not answer, or what draws the screen is missing.
    """
    flags = parser().parse_args(arguments)
    if not sys.stdout.isatty():
        raise RunError("edriver top needs a terminal; edriver status prints the same once")
    if missing := missing_extra("edriver top", "textual", "top"):
        raise RunError(missing)
    from edriver.commands.top_screen import Top, Watch

    with client_of(flags) as client:
        client.status()  # reports why it cannot be reached, as every other command does
        shown = Top(client.status, Watch(client))
        shown.run(mouse=False)  # so that the terminal's own selection works
        if shown.lost is not None:
            raise shown.lost
        latest = shown.happened.latest
        return f"run {client.run_id} has ended: {latest[-1].text}" if shown.happened.ended.is_set() and latest else ""
