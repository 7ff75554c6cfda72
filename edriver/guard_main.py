"""The guard: a small process that outlives whom it guards just long enough to clear up after it.

However that process ends, SIGKILL included, the pipe from it then reads as ended: every process group on the list is
killed. The list comes through the pipe: a line "+PGID" puts a group on it, "-PGID" takes it off.

The folder that is its argument, if there is one, is then removed: the process's own, with its sockets and papers.

It runs this file alone, without site-packages, so that it starts at once and stays small; it must import nothing of
edriver. It ignores the signals that end other processes: only the end of the pipe ends it.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator

ATTEMPTS = 100
"""How often removing a folder is tried: somebody who has yet to end may put something in while it is emptied."""


def lines_of(fd: int) -> Iterator[bytes]:
    """The lines of a pipe until it ends; one that was cut short by the writer's death is left out."""
    rest = b""
    while chunk := os.read(fd, 4096):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines


def listed_groups(lines: Iterator[bytes]) -> set[int]:
    """The process groups on the list after its last line."""
    groups: set[int] = set()
    for line in lines:
        if line[:1] == b"+":
            groups.add(int(line[1:]))
        else:
            groups.discard(int(line[1:]))
    return groups


def remove(folder: str) -> None:
    """Remove a folder with all that is in it; what cannot be removed stays."""
    for place, folders, files in os.walk(folder, topdown=False):
        for name in (*files, *folders):
            path = os.path.join(place, name)  # noqa: PTH118  pathlib would triple what this process imports
            try:  # noqa: SIM105
                (os.rmdir if name in folders and not os.path.islink(path) else os.unlink)(path)  # noqa: PTH114
            except OSError:
                pass
    try:  # noqa: SIM105
        os.rmdir(folder)  # noqa: PTH106
    except OSError:
        pass


def main() -> None:
    """Keep the list that comes on standard input; clear up when whoever writes it is gone."""
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(ignored, signal.SIG_IGN)
    for group in listed_groups(lines_of(0)):
        try:  # noqa: SIM105  contextlib would triple what this process imports
            os.killpg(group, signal.SIGKILL)
        except OSError:
            pass  # all of it has ended, or belongs to another user by now
    for folder in sys.argv[1:]:
        for _ in range(ATTEMPTS):
            remove(folder)
            if not os.path.exists(folder):  # noqa: PTH110
                break


if __name__ == "__main__":
    main()
