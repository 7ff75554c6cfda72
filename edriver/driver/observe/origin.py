"""What a run is started from, where, and by whom: found once, beside the run's start, which does not wait for it."""

from __future__ import annotations

import contextlib
import json
import platform
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from edriver.common.release import VERSION
from edriver.driver.observe.records.source_commit import source_commit
from edriver.system.account import account_name
from edriver.text.message_reader import message_of
from edriver.v1 import status_pb2


def find_origin(directory: Path) -> status_pb2.Origin:
    """Ask git, the account's name service and the installed packages. May take seconds, where git is slow.

    Args:
        directory: the working directory of the command line.
    """
    # Imported here, beside the start: it takes 20 ms.
    from importlib.metadata import PackageNotFoundError, version

    origin = status_pb2.Origin(
        user=account_name(),
        host=socket.gethostname(),
        directory=str(directory),
        edriver=VERSION,
        python=platform.python_version(),
    )
    with contextlib.suppress(PackageNotFoundError):
        origin.torch = version("torch")
    if (found := source_commit(directory)) is not None:
        origin.commit, origin.changed = found
    return origin


def recorded_origin(file: Path) -> status_pb2.Origin | None:
    """The origin in a run's run.json; None: it has none, or cannot be read."""
    try:
        return message_of(status_pb2.Origin, json.loads(file.read_bytes())["origin"])
    except (OSError, ValueError, LookupError, TypeError, OverflowError, RecursionError):
        return None


def found_later(find: Callable[[], status_pb2.Origin]) -> Future[status_pb2.Origin]:
    """Call `find` in a thread that the end of the process does not wait for."""
    found: Future[status_pb2.Origin] = Future()

    def work() -> None:
        try:
            found.set_result(find())
        except Exception as error:  # noqa: BLE001  whoever asks for the result gets it
            found.set_exception(error)

    threading.Thread(target=work, name="edriver-origin", daemon=True).start()
    return found
