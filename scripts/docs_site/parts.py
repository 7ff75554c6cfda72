"""The values and tables in pages that come from the source: committed, and marked by comments, which no reader sees.

    5 s<!-- value: worker-lease -->                              a flag's default
    4,096<!-- value: edriver.model.limits.MAX_HOST_SLOTS -->     a constant
    <!-- table: metrics --> ... <!-- end -->                     a part of the reference: PARTS lists them

What the site has mkdocstrings write is asked for in a comment, `<!-- api ... -->`; the repository has a table instead.

`make docs-values` brings them up to date. It also replaces what a writer puts in braces, `{{ --worker-lease }}`,
`{{ edriver.model.limits.MAX_HOST_SLOTS }}` or `{{ table metrics }}`, by the value with its mark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Final

from edriver.cli.main import parser
from scripts.docs_site import command_line, configuration, contents, metrics, protocol, python_api, state_diagrams
from scripts.docs_site.constants import UnknownConstantError, constant
from scripts.docs_site.markdown import API
from scripts.docs_site.words import words

PARTS: Final[Mapping[str, Callable[[], str]]] = {
    "contents": contents.contents,
    "command-line": command_line.page,
    "settings": configuration.settings,
    "bounds": configuration.bounds,
    "worker-bounds": configuration.worker_bounds,
    "limits": configuration.limits,
    "environment": configuration.environment,
    "metrics": metrics.page,
    "events": protocol.events,
    "event-line": protocol.event_line_example,
    "proto": protocol.page,
    "states-of-a-round": state_diagrams.of_a_round,
    "states-of-a-worker": state_diagrams.of_a_worker,
}

_NUMBER: Final = r"\d[\d.,]*(?: to [\d.,]+)?(?: s)?"
_VALUE: Final = re.compile(rf"(?:{_NUMBER})?<!-- value: ([\w.-]+) -->")
_TABLE: Final = re.compile(r"<!-- table: ([\w-]+) -->\n.*?<!-- end -->", re.DOTALL)
_BRACES: Final = re.compile(r" ?\{\{(\s+)(?:(table)\s+)?([\w.-]+)\s+\}\}")


class UnknownPartError(Exception):
    """A page asks for a value or a table that does not exist; the message names it."""


def written(text: str) -> str:
    """A page as it is to be: each value and each table as the source has it now.

    Raises:
        UnknownPartError: the page asks for something that does not exist, or for a value that is no number.
    """
    text = _BRACES.sub(_marked, text)
    text = _VALUE.sub(lambda match: f"{value(match[1])}{match[0][match[0].index('<') :]}", text)
    text = API.sub(lambda match: f"<!-- api\n{match[1]}-->\n\n{python_api.listing(match[1])}\n<!-- end -->", text)
    return _TABLE.sub(lambda match: f"<!-- table: {match[1]} -->\n\n{_part(match[1]).strip()}\n\n<!-- end -->", text)


def _marked(braces: re.Match[str]) -> str:
    """What is asked for in braces, as its mark. A line that ends within them ends before it."""
    before = "\n" if "\n" in braces[1] else " " * braces[0].startswith(" ")
    if braces[2]:
        return f"{before}<!-- table: {braces[3]} -->\n<!-- end -->"
    return f"{before}<!-- value: {braces[3].removeprefix('--')} -->"  # of "--" GitHub makes no comment


def value(name: str) -> str:
    """A flag's default, or a constant, in words.

    Args:
        name: the flag without its dashes, or the constant's full name.

    Raises:
        UnknownPartError: there is no such flag or constant, or it is no number.
    """
    found = words(_constant(name) if "." in name else _default(name))
    if not re.fullmatch(_NUMBER, found):
        raise UnknownPartError(f"{name} is {found}, and pages take numbers alone")
    return found


def _constant(name: str) -> object:
    try:
        return constant(name).value
    except UnknownConstantError as error:
        raise UnknownPartError(str(error)) from None


def _default(flag: str) -> object:
    for action in parser()._actions:
        if f"--{flag}" in action.option_strings:
            return action.default
    raise UnknownPartError(f"edriver has no flag --{flag}")


@cache
def _part(name: str) -> str:
    if name not in PARTS:
        raise UnknownPartError(f"there is no table {name}; there are {', '.join(PARTS)}")
    return PARTS[name]()
