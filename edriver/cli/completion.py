"""`edriver --print-completion SHELL`: what completes edriver's words and flags in a shell. shtab writes it."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterator
from typing import Final

import shtab

from edriver.agent import dial_in
from edriver.cli.main import CONTROL_COMMANDS, STATUS_COMMANDS, flags_parser
from edriver.commands import steer
from edriver.rendezvous import command as rendezvous

PATH_COMPLETIONS: Final = {"FILE": shtab.FILE, "SCRIPT": shtab.FILE, "DIR": shtab.DIRECTORY}
"""What completes an argument that the help calls so."""

FILE_FALLBACKS: Final = {
    "bash": "complete -o default -o filenames -F _shtab_edriver edriver",
    "zsh": "[[ $zsh_eval_context[-1] == eval ]] || (( compstate[nmatches] )) || _files",
}
"""Where there is nothing of ours files are completed: the worker's program and its arguments come last."""


def completion(shell: str) -> str:
    """The shell's code: for bash to be sourced, for zsh a file `_edriver` in a folder of $fpath."""
    top = flags_parser()
    words = top.add_subparsers(dest="command")
    for word, parser in words_of_edriver():
        # add_parser would make another; shtab shows a word only if it has a help text.
        made = words.add_parser(
            word, parents=[parser], add_help=False, description=parser.description, help=parser.description
        )
        _complete_paths(made)
    _complete_paths(top)
    return f"{shtab.complete(top, shell)}\n{FILE_FALLBACKS[shell]}\n"


def words_of_edriver() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """What may come first on the command line in a flag's place, with the flags that follow it."""
    yield "agent", dial_in.parser()
    for word in CONTROL_COMMANDS:
        yield word, steer.parser(word)
    for word in STATUS_COMMANDS:
        yield word, importlib.import_module(f"edriver.commands.{word}").parser()
    yield "rendezvous", rendezvous.parser()


def _complete_paths(parser: argparse.ArgumentParser) -> None:
    for action in parser._actions:
        if isinstance(action.metavar, str) and action.metavar in PATH_COMPLETIONS:
            action.complete = PATH_COMPLETIONS[action.metavar]  # type: ignore[attr-defined]  # where shtab looks for it
