"""The page's files: ours, and plotly's, from the package `plotly`."""

from __future__ import annotations

from functools import cache
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from edriver.client import RunError

INSTALL_COMMAND: Final = "pip install 'edriver[dashboard]'"

_CURVE_SCRIPTS: Final = (
    "story.js",
    "figures.js",
    "series.js",
    "charts.js",
    "curve_figures.js",
    "curves.js",
    "download.js",
)

PAGE_SCRIPTS: Final = (
    *_CURVE_SCRIPTS,
    "tables.js",
    "data_tables.js",
    "time_lost.js",
    "output.js",
    "stacks.js",
    "resources.js",
    "page.js",
)
"""Ours for the page of a run, in the order in which they are loaded;"""

COMPARE_SCRIPTS: Final = (*_CURVE_SCRIPTS, "compare.js")
"""for the page that lays runs over one another;"""

LIST_SCRIPTS: Final = ("story.js", "runs.js")
"""and for the list of runs."""

STEERING_SCRIPT: Final = "steering.js"
"""Loaded before the last of PAGE_SCRIPTS, where the run may be steered from the page."""


@cache
def page_file(name: str) -> str:
    """One of our own files."""
    return resources.files("edriver.dashboard").joinpath("page", name).read_text(encoding="utf-8")


def plotly_script() -> Path:
    """The charts' library.

    Raises:
        RunError: it is not installed.
    """
    found = find_spec("plotly")
    if found is None or found.origin is None:
        raise RunError(f"the package plotly, which draws the charts, is missing: {INSTALL_COMMAND}")
    path = Path(found.origin).parent / "package_data" / "plotly.min.js"
    if not path.is_file():
        raise RunError(f"the package plotly has no {path.name}: {INSTALL_COMMAND} installs one that has")
    return path


def linked(*names: str, charts: bool = False) -> str:
    """The elements by which a page that is served asks for its style and these scripts.

    Args:
        names: of the scripts, in the order in which they run.
        charts: whether it asks for plotly, too. The others do not wait for that: it is large, and the page has a lot to
            say before there are charts.
    """
    library = ['<script src="plotly.js" async></script>'] if charts else []
    scripts = [f'<script src="{name}" defer></script>' for name in names]
    return "\n".join(['<link rel="stylesheet" href="page.css">', *library, *scripts])


def filled(template: str, **parts: str) -> str:
    """The page's frame with `<!--name-->` replaced by each part; what a part contains is not looked at again."""
    head, *rest = template.split("<!--")
    out = [head]
    for piece in rest:
        name, _, text = piece.partition("-->")
        out += [parts[name], text]
    return "".join(out)
