"""Where a link leads on the site. Pages are written for readers of the repository, so links are paths within it.

A file outside docs/ that a page links to becomes a page of its own, so that the site needs no repository.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

HOME: Final = "README.md"
"""The page that the site opens with."""

_LINK: Final = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")
_CODE: Final = re.compile(r"^```(?:[^\n]*\n)*?```$|^(?: {4,}[^\n]*\n)+|`[^`\n]+`", re.MULTILINE)
_LANGUAGES: Final = {
    ".py": "python",
    ".proto": "protobuf",
    ".sh": "sh",
    ".json": "json",
    ".yml": "yaml",
    ".toml": "toml",
}


class BrokenLinkError(Exception):
    """A page links to a file that is not there; the message names both."""


def page_of(path: str) -> str:
    """The page (as MkDocs names it) that shows a file or folder of the repository.

    Args:
        path: from the root of the repository.
    """
    if path == HOME:
        return "index.md"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path.endswith(".md"):
        return f"project/{path}"
    return f"source/{path}.md"


def path_of(uri: str) -> str:
    """Where a page's text is, from the root of the repository: the reverse of `page_of`.

    Args:
        uri: the page, as MkDocs names it. One of source/ has no text there, and is its own path.
    """
    if uri == page_of(HOME):
        return HOME
    if uri.startswith("project/"):
        return uri.removeprefix("project/")
    return uri if uri.startswith("source/") else f"docs/{uri}"


def targets(text: str, path: str) -> Iterator[str]:
    """The files and folders of the repository that a page links to.

    Args:
        text: the page.
        path: where it is, from the root of the repository.
    """
    for match in _links(text):
        yield _target(match[2], path)


def rewritten(text: str, path: str, root: Path) -> str:
    """A page whose links lead to pages of the site.

    Args:
        text: the page.
        path: where it is, from the root of the repository.
        root: the root of the repository.

    Raises:
        BrokenLinkError: a link leads to no file of the repository.
    """
    parts = []
    end = 0
    folder = posixpath.dirname(page_of(path))
    for match in _links(text):
        target = _target(match[2], path)
        if target.startswith("..") or not (root / target).exists():
            raise BrokenLinkError(f"{path} links to {match[2]}, which is not there")
        link = posixpath.relpath(page_of(target), folder or ".")
        parts += [text[end : match.start()], f"]({link}{match[3] or ''})"]
        end = match.end()
    return "".join([*parts, text[end:]])


def source_page(path: str, root: Path) -> str:
    """The page that shows a file as it is, or what is in a folder.

    Args:
        path: the file or folder, from the root of the repository; no Markdown.
        root: the root of the repository.
    """
    head = f"---\nsearch:\n  exclude: true\n---\n# {path}\n\n"
    file = root / path
    if file.is_dir():
        names = sorted(each.name for each in file.iterdir() if each.name != "__pycache__")
        return head + "".join(f"- `{name}`\n" for name in names)
    return f"{head}``````{_LANGUAGES.get(file.suffix, 'text')}\n{file.read_text()}\n``````\n"


def _links(text: str) -> Iterator[re.Match[str]]:
    """The links to files: none in code, none to elsewhere, none within the page."""
    code = [match.span() for match in _CODE.finditer(text)]
    for match in _LINK.finditer(text):
        elsewhere = re.match(r"[a-z]+:", match[2])
        if not elsewhere and not any(begin <= match.start() < end for begin, end in code):
            yield match


def _target(link: str, path: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), link))
