"""The progress of a run in the notebook that has started it: one output, which each new line replaces."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any


def progress_display() -> Callable[[str], None] | None:
    """Return what shows a line in this notebook, in the place of the one before; None outside of a notebook.

    Only IPython is needed, which a notebook's kernel has imported; in an IPython shell there is no kernel.
    """
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if getattr(shell, "kernel", None) is None:
        return None
    display = importlib.import_module("IPython.display").display
    shown: Any = None

    def show(line: str) -> None:
        nonlocal shown
        data = {"text/plain": line}
        if shown is None:
            shown = display(data, raw=True, display_id=True)
        else:
            shown.update(data, raw=True)

    return show
