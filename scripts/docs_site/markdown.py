"""Markdown from data."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

API: Final = re.compile(r"<!-- api\n(.*?)-->\n.*?<!-- end -->", re.DOTALL)
"""What the site has mkdocstrings show: in a comment, before the table that the repository shows instead."""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table, as Markdown has it."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def cell(text: str) -> str:
    """Plain text as a table's cell: on one line, its markup and bars escaped, what is in backquotes left as code."""
    parts = re.split(r"(`[^`]+`)", " ".join(text.split()))
    return "".join(part if part.startswith("`") else _escaped(part) for part in parts).replace("|", "\\|")


def _escaped(text: str) -> str:
    return re.sub(r"([\\*_<>\[\]{}$])", r"\\\1", text)
