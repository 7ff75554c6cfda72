"""Makes text from outside safe for a terminal, which must not act on it."""

from __future__ import annotations

from typing import Final

_KEPT_CHARACTERS: Final = "\n\t"


def printable(text: str) -> str:
    r"""The text with every control character written out (\x1b); line ends and tabs stay.

    Those of Unicode are among them, which turn the direction of writing or have no width.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in _KEPT_CHARACTERS else ascii(c)[1:-1] for c in text)


def printable_line(text: str) -> str:
    r"""The same for a text that is one line, such as a name: line ends and tabs are written out, too (\n)."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def printable_entry(text: str) -> str:
    """The same for an entry of a list: lines after its first are indented, so that none looks like another entry."""
    return printable(text).replace("\n", "\n    ")
