"""`make docs-values`: writes the values and tables of the pages under docs/ as the source has them now (parts.py)."""

from __future__ import annotations

import sys
from pathlib import Path

from scripts.docs_site.parts import UnknownPartError, written

DOCS = Path(__file__).parents[2] / "docs"


def main() -> None:
    """Write each page that is out of date, and name it."""
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text()
        try:
            new = written(text)
        except UnknownPartError as error:
            raise SystemExit(f"{page}: {error}") from None
        if new != text:
            page.write_text(new)
            sys.stdout.write(f"{page.relative_to(DOCS.parent)}\n")


if __name__ == "__main__":
    main()
