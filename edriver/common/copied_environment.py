"""Where a worker's Python environment was copied from (--copy-environment): what other hosts find by the same path."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Final

COPIED_FROM: Final = "EDRIVER_COPIED_FROM"
"""The variable of a worker that runs in a copy of its environment: the folder of the original."""


def shared_interpreter(
    environ: Mapping[str, str] = os.environ, executable: str = sys.executable, prefix: str = sys.prefix
) -> str:
    """This process's interpreter by a path that leads to it on each host: each has its copy elsewhere.

    Args:
        environ: this process's environment.
        executable: its interpreter.
        prefix: the folder of its Python environment.
    """
    source = environ.get(COPIED_FROM)
    return moved(executable, prefix, source) if source else executable


def moved(path: str, source: str, copy: str) -> str:
    """A path with one folder that it begins with in the place of another; any other path as it is, and each if both
    folders are empty.
    """
    return copy + path[len(source) :] if path == source or path.startswith(f"{source}{os.sep}") else path
