"""MkDocs' hooks: add the pages that no file of docs/ holds, and have links lead to pages of the site."""

from __future__ import annotations

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

from scripts.docs_site import links

ROOT = Path(__file__).parents[2]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the home page, and a page for each file outside docs/ that a page links to."""
    todo = [links.HOME, *(f"docs/{file.src_uri}" for file in files.documentation_pages())]
    home = f"---\nhide: [navigation]\n---\n{(ROOT / links.HOME).read_text()}"
    files.append(File.generated(config, links.page_of(links.HOME), content=home))
    known = set(todo)
    while todo:
        path = todo.pop()
        for target in set(links.targets((ROOT / path).read_text(), path)) - known:
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
    """Have links lead to pages of the site."""
    path = _path_of(page.file.src_uri)
    if path.startswith("source/"):
        return markdown
    try:
        return links.rewritten(markdown, path, ROOT)
    except links.BrokenLinkError as error:
        raise PluginError(str(error)) from None


def _path_of(uri: str) -> str:
    """Where a page's text is, from the root of the repository."""
    if uri == links.page_of(links.HOME):
        return links.HOME
    if uri.startswith("project/"):
        return uri.removeprefix("project/")
    return uri if uri.startswith("source/") else f"docs/{uri}"
