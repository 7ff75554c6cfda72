"""The Python API for readers of the repository: the names that mkdocstrings is asked for, with what each is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

from scripts.docs_site.markdown import cell, table

ROOT: Final = Path(__file__).parents[2]
_DIRECTIVE: Final = re.compile(r"^::: edriver\.(\S+)\n((?: .*\n)*)", re.MULTILINE)


def listing(directives: str) -> str:
    """The table of what some directives of mkdocstrings show.

    Args:
        directives: each `::: NAME`, with its options in YAML.
    """
    return table(
        ("name", "what it is"), [row for match in _DIRECTIVE.finditer(directives) for row in _rows(*match.groups())]
    )


def _rows(name: str, settings: str) -> Iterator[tuple[str, str]]:
    options = (yaml.safe_load(settings) or {}).get("options", {})
    if options.get("show_root_heading", True):
        yield _row(name)
    for member in options.get("members") or []:
        yield _row(f"{name}.{member}")


def _row(name: str) -> tuple[str, str]:
    found = _package()[name]
    found = found.final_target if found.is_alias else found
    first, _, _ = (found.docstring.value if found.docstring else "").partition("\n\n")
    return f"[`edriver.{name}`](../../{found.relative_filepath})", cell(first)


@cache
def _package() -> Any:
    """Edriver, read and not imported. (Griffe comes with mkdocstrings: those who write no pages need not have it.)"""
    import griffe

    loader = griffe.GriffeLoader(search_paths=[ROOT])
    found = loader.load("edriver")
    loader.resolve_aliases(external=False)
    return found
