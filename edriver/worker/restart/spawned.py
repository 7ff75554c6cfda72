"""Processes that a script starts by spawn or forkserver: whether each of them would run the script again.

Such a process imports the script first. A script that trains at its top level would join the round there once more, as
the same rank, and wait for ever for peers that have met already.
"""

from __future__ import annotations

import ast
import sys
import traceback
from pathlib import Path
from typing import Any

from edriver.worker.backend.interpreter import before_new_process


def refuse_unguarded() -> None:
    """Have the script's own process raise a RuntimeError where such a process is started and would train."""
    before_new_process(_refuse_unguarded)


def _refuse_unguarded() -> None:
    main = vars(sys.modules["__main__"])
    if (script := main.get("__file__")) and _is_at_top_level(main) and not _is_guarded(Path(script)):
        raise RuntimeError(
            f"a process is started by spawn or forkserver, as a DataLoader's worker may be, and would run {script} "
            'again from its top: put the code that trains under `if __name__ == "__main__":`. forkserver is the '
            "default start method from Python 3.14 on"
        )


def _is_at_top_level(main: dict[str, Any]) -> bool:
    """Whether the script's top level has led here: then it does so in a child that imports it, too."""
    return any(
        frame.f_code.co_name == "<module>" and frame.f_globals is main for frame, _ in traceback.walk_stack(None)
    )


def _is_guarded(script: Path) -> bool:
    """Whether the script looks at its name, the one thing by which it can tell that it is being imported."""
    try:
        tree = ast.parse(script.read_bytes(), str(script))
    except (OSError, SyntaxError, ValueError):
        return True  # cannot be told
    return any(isinstance(node, ast.Name) and node.id == "__name__" for node in ast.walk(tree))
