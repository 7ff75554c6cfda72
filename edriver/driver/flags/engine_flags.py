"""Flags that stand for an engine: each picks the host source, the launcher and the broker of that name.

They are entry points, as those of --discovery, --launcher and --broker: an engine is imported once its flag is given.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine that has a flag.

    Attributes:
        name: the name of its entry points.
        flag: the flag.
        attribute: where argparse puts the flag's value.
        dials_in: whether its agents dial in by themselves.
    """

    name: str
    flag: str
    attribute: str
    dials_in: bool


ENGINES: Final = (Engine("kubernetes", "--kubernetes", "kubernetes", dials_in=True),)
"""All of them."""


def engine_of(flags: argparse.Namespace) -> tuple[Engine, str] | None:
    """The engine that the operator has named, and the flag's argument; None: there is none."""
    for engine in ENGINES:
        if (argument := getattr(flags, engine.attribute)) is not None:
            return engine, argument
    return None
