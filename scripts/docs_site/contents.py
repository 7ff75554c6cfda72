"""The contents of the documentation for readers of the repository, from the site's navigation."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from scripts.docs_site import links

CONFIG = Path(__file__).parents[2] / "mkdocs.yml"


def contents() -> str:
    """All pages, in nested lists."""
    return "\n".join(_items(yaml.safe_load(CONFIG.read_text())["nav"], ""))


def _items(nav: list[dict[str, Any]], indent: str) -> Iterator[str]:
    for title, inside in (pair for entry in nav for pair in entry.items()):
        if isinstance(inside, str):
            yield f"{indent}* [{title}]({posixpath.relpath(links.path_of(inside), 'docs')})"
        else:
            yield f"{indent}* {title}"
            yield from _items(inside, f"{indent}  ")
