"""`edriver --print-completion SHELL`: what completes edriver's words and flags in a shell. shtab writes it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Final

import shtab

from edriver.cli.run_flags import flags_parser
from edriver.cli.subcommands import SUBCOMMANDS

PATH_COMPLETIONS: Final = {"FILE": shtab.FILE, "SCRIPT": shtab.FILE, "DIR": shtab.DIRECTORY}
"""What completes an argument that the help calls so."""

FILE_FALLBACKS: Final = {
    "bash": "complete -o default -o filenames -F _shtab_edriver edriver",
    "zsh": "[[ $zsh_eval_context[-1] == eval ]] || (( compstate[nmatches] )) || _files",
}
"""Where there is nothing of ours files are completed: the worker's program and its arguments come last."""


def completion(shell: str) -> str:
    """The shell's code: for bash to be sourced, for zsh a file `_edriver` in a folder of $fpath."""
    top: argparse.ArgumentParser = flags_parser()
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
    yield "run", flags_parser("start a run; the word may be left out")
    for word, subcommand in SUBCOMMANDS.items():
        yield word, subcommand.parser()


def _complete_paths(parser: argparse.ArgumentParser) -> None:
    for action in parser._actions:
        if isinstance(action.metavar, str) and action.metavar in PATH_COMPLETIONS:
            action.complete = PATH_COMPLETIONS[action.metavar]  # type: ignore[attr-defined]  # where shtab looks for it
