"""What a page can ask for between double braces: a value, or a generated part of the reference."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Final

from edriver.cli.main import parser
from scripts.docs_site import command_line, configuration, metrics, protocol
from scripts.docs_site.constants import UnknownConstantError, constant
from scripts.docs_site.words import words

PARTS: Final[Mapping[str, Callable[[], str]]] = {
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
}

_BRACES: Final = re.compile(r"\{\{\s+(?:(table)\s+)?([\w.-]+)\s+\}\}")


class UnknownPartError(Exception):
    """A page asks for a value or a table that does not exist; the message names it."""


def filled_in(text: str) -> str:
    """A page with all that it asks for.

    Raises:
        UnknownPartError: it asks for something that there is not.
    """
    return _BRACES.sub(lambda match: _part(match[2]) if match[1] else value(match[2]), text)


def value(name: str) -> str:
    """A flag's default, or a constant given by its full name, in words.

    Raises:
        UnknownPartError: there is no such flag or constant.
    """
    if not name.startswith("-"):
        try:
            return words(constant(name).value)
        except UnknownConstantError as error:
            raise UnknownPartError(str(error)) from None
    for action in parser()._actions:
        if name in action.option_strings:
            return words(action.default)
    raise UnknownPartError(f"edriver has no flag {name}")


@cache
def _part(name: str) -> str:
    if name not in PARTS:
        raise UnknownPartError(f"there is no table {name}; there are {', '.join(PARTS)}")
    return PARTS[name]()
