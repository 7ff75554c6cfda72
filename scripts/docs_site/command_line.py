"""The reference of the command line, from the parsers that edriver itself uses."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from edriver.cli import main
from edriver.cli.subcommands import SUBCOMMANDS
from edriver.rendezvous import command as rendezvous
from scripts.docs_site.markdown import cell, table


def page() -> str:
    """All commands, each with its flags."""
    parsers = [
        main.parser(),
        *(subcommand.parser() for subcommand in SUBCOMMANDS.values()),
        rendezvous.status_parser(),
    ]
    return "\n".join(line for parser in parsers for line in _command(parser))


def _command(parser: argparse.ArgumentParser) -> Iterator[str]:
    yield f"## `{parser.prog}`\n"
    main_command = parser.prog == "edriver"
    if parser.description and not main_command:
        yield f"{' '.join(parser.description.split())}\n"
    usage = " ".join(parser.format_usage().removeprefix("usage: ").split())
    yield f"```text\n{usage}\n```\n"
    formatter = parser._get_formatter()
    if main_command:
        yield f"```text\n{(parser.description or '').rstrip()}\n```\n"
    for group in parser._action_groups:
        rows = [
            (_name(action, parser.prog), cell(formatter._expand_help(action)))
            for action in group._group_actions
            if action.help and action.help is not argparse.SUPPRESS
        ]
        if not rows:
            continue
        if main_command and group.title not in ("options", "positional arguments"):
            yield f"### {group.title and group.title[0].upper() + group.title[1:]}\n"
        yield f"{table(('argument', 'meaning'), rows)}\n"
    if main_command and parser.epilog:
        yield f"### Examples and exit codes\n\n```text\n{parser.epilog.rstrip()}\n```\n"


def flag_of(action: argparse.Action) -> str:
    """The name by which the pages call a flag."""
    plain = f"--{action.dest.replace('_', '-')}"
    return plain if plain in action.option_strings else action.option_strings[0]


def anchor_of(action: argparse.Action, prog: str = "edriver") -> str:
    """Where a flag stands on the page, as `--worker-lease` of `edriver` at `#edriver--worker-lease`."""
    return f"{prog}--{action.dest}".replace(" ", "-").replace("_", "-")


def _name(action: argparse.Action, prog: str) -> str:
    metavar = action.metavar if isinstance(action.metavar, tuple) else (action.metavar or "",)
    values = "" if action.nargs == 0 else " ".join(metavar)
    if not action.option_strings:
        return f"`{values or action.dest}`"
    names = ", ".join(action.option_strings)
    return f'<a id="{anchor_of(action, prog)}"></a>`{f"{names} {values}".strip()}`'
