"""Which process a worker is: the one that its slot's command runs in, and none that its script starts.

multiprocessing's start methods spawn and forkserver have a child import the script again, under the name __mp_main__.
What the script calls at its top level is then called there as well, by a process that has all of the worker's
environment.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Mapping, MutableMapping
from typing import Final

WORKER_PID_VARIABLE: Final = "EDRIVER_WORKER_PID"
"""The process that takes part in the run as this worker; all that it starts inherits the variable."""

_IMPORTED_SCRIPT: Final = "__mp_main__"
"""A script's name while multiprocessing imports it; parent_process() answers only later, and never in a fork server."""


def claim(environ: MutableMapping[str, str] = os.environ) -> None:
    """Mark this process as the worker."""
    environ[WORKER_PID_VARIABLE] = str(os.getpid())


def owner(environ: Mapping[str, str] = os.environ) -> int | None:
    """The process ID of the worker if it is another process; None if it is this one, or if there is no worker."""
    pid = environ.get(WORKER_PID_VARIABLE)
    return None if pid is None or int(pid) == os.getpid() else int(pid)


def is_importing_script() -> bool:
    """Whether multiprocessing is importing the script in a process that the script has started."""
    return any(
        frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == _IMPORTED_SCRIPT
        for frame, _ in traceback.walk_stack(None)
    )


def refuse_import(what: str) -> None:
    """Refuse a call from a script that multiprocessing is only importing.

    Args:
        what: what was called, such as "edriver.run".

    Raises:
        RuntimeError: multiprocessing is importing the script.
    """
    if is_importing_script():
        raise RuntimeError(
            f"{what} was called while multiprocessing imports the script again, in a process that the script has "
            'started: put the code that trains under `if __name__ == "__main__":`. The start methods spawn and '
            "forkserver need that, for a DataLoader's workers, too; forkserver is the default from Python 3.14 on"
        )


def refuse_child(what: str) -> None:
    """Refuse a call from a child process of the worker.

    Args:
        what: what was called, such as "edriver.run".

    Raises:
        RuntimeError: the calling process was started by the worker.
    """
    refuse_import(what)
    if (pid := owner()) is not None:
        raise RuntimeError(
            f"{what} was called in process {os.getpid()}, but process {pid} is this worker. A worker is one process: "
            "call it there, not in a process that the script starts. If several processes should train, give the host "
            "more slots"
        )
