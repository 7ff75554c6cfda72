"""A case: a text file of commands, and under each block of commands the actions that they must lead to.

    # What the case shows, and why it matters.
    run np=2 min-np=1 max-np=4
    hosts a:2
    ----
    start agent 1 on a

A block is a few lines of commands, a line of four dashes, and the expected actions up to the next empty line. Lines
that begin with `#` are comments; they may stand before and between commands, and survive a rewrite.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

CASES = Path(__file__).parent / "cases"
DASHES = "----"
NOTHING = "(nothing)"
"""Stands under a block that leads to no action: an empty answer is easily read over."""


@dataclass(frozen=True, slots=True)
class Block:
    """Commands, and what they must lead to.

    Attributes:
        lines: comments and commands as they stand in the file.
        expected: the actions as text; (NOTHING,) if there are none.
    """

    lines: tuple[str, ...]
    expected: tuple[str, ...]

    @property
    def commands(self) -> tuple[str, ...]:
        """The lines without comments."""
        return tuple(line for line in self.lines if not line.startswith("#"))

    def answered(self, actions: Iterable[str]) -> Block:
        """This block with these actions under it."""
        return replace(self, expected=tuple(actions) or (NOTHING,))

    def __str__(self) -> str:
        return "\n".join([*self.lines, DASHES, *self.expected])


def parse_case(text: str) -> list[Block]:
    """Read a case.

    Raises:
        ValueError: a block has no line of dashes, no commands, or nothing under it.
    """
    return [_parse_block(paragraph) for paragraph in _paragraphs(text)]


def format_case(blocks: Iterable[Block]) -> str:
    """The text that `parse_case` reads."""
    return "\n\n".join(str(block) for block in blocks) + "\n"


def _paragraphs(text: str) -> Iterator[list[str]]:
    """Runs of lines that are not empty; a paragraph of comments alone belongs to the block after it."""
    comments: list[str] = []
    for paragraph in text.strip("\n").split("\n\n"):
        lines = [*comments, *paragraph.strip("\n").split("\n")]
        if all(line.startswith("#") for line in lines):
            comments = lines
        else:
            comments = []
            yield lines
    if comments:
        raise ValueError(f"a case ends with a comment: {comments[0]!r}")


def _parse_block(lines: list[str]) -> Block:
    if DASHES not in lines:
        raise ValueError(f"no {DASHES} after {lines[0]!r}: what do these commands lead to?")
    dashes = lines.index(DASHES)
    block = Block(tuple(lines[:dashes]), tuple(lines[dashes + 1 :]))
    if not block.commands or not block.expected:
        raise ValueError(f"commands stand before {DASHES} and actions after it: see {lines[0]!r}")
    return block
