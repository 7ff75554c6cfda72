"""What a mistyped word was probably meant to be."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Final

MIN_LIKENESS: Final = 0.7
"""How alike two words must be, from 0 to 1, as difflib measures it: below that a suggestion is a guess."""


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that is most like this one; None: none is like it."""
    return next(iter(difflib.get_close_matches(word, list(known), 1, MIN_LIKENESS)), None)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of a sentence that refuses a word: `: did you mean --min-np?`; empty if no known word is like it."""
    near = nearest(word, known)
    return f": did you mean {near}?" if near else ""


def did_you_mean_run(named: str, names: Mapping[str, str]) -> str:
    """The same, of what is neither the ID nor the name of a run.

    Args:
        named: the word.
        names: the names of all runs, by run_id; empty: it has none.
    """
    return did_you_mean(named, [*names, *filter(None, names.values())])
