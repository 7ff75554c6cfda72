"""MkDocs' hooks: add the pages that no file of docs/ holds, and have links lead to pages of the site."""

from __future__ import annotations

import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # `mkdocs build` does not search the folder in which it is started

from scripts.docs_site import links  # noqa: E402
from scripts.docs_site.markdown import API  # noqa: E402

SEARCH_BOOST = {
    "docs/reference/command-line.md": 4,
    "docs/reference/configuration.md": 4,
    "docs/how-to/symptoms.md": 2,
    "docs/how-to/checkpoints.md": 4,
}
"""What these pages' hits count for. In their front matter, the repository would show it as a table."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the home page, and a page for each file outside docs/ that a page links to."""
    todo = [links.HOME, *(f"docs/{file.src_uri}" for file in files.documentation_pages())]
    home = f"---\nhide: [navigation]\n---\n{(ROOT / links.HOME).read_text()}"
    files.append(File.generated(config, links.page_of(links.HOME), content=home))
    known = set(todo)
    while todo:
        path = todo.pop()
        for target in set(links.targets(API.sub("", (ROOT / path).read_text()), path)) - known:
            if target.startswith(("docs/", "..")) or not (ROOT / target).exists():
                continue  # a file of MkDocs' own, or a broken link, which is refused where it stands
            known.add(target)
            is_page = target.endswith(".md")
            todo += [target] * is_page
            files.append(
                File.generated(
                    config,
                    links.page_of(target),
                    content=(ROOT / target).read_text() if is_page else links.source_page(target, ROOT),
                    inclusion=InclusionLevel.UNDEFINED if is_page else InclusionLevel.NOT_IN_NAV,
                )
            )
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Have links lead to pages of the site, and the search find first what answers most questions."""
    path = links.path_of(page.file.src_uri)
    if path in SEARCH_BOOST:
        page.meta["search"] = {"boost": SEARCH_BOOST[path]}
    if path.startswith("source/"):
        return markdown
    try:
        return links.rewritten(API.sub(r"\1", markdown), path, ROOT)
    except links.BrokenLinkError as error:
        raise PluginError(str(error)) from None
