"""The agent's guard: a small process that outlives the agent just long enough to end its workers.

However the agent ends, SIGKILL included, the pipe from it then reads as ended, and every process group on the guard's
list is killed. The agent writes a line "+PGID" when it has started a worker and "-PGID" when it has seen it exit.

The folder that is its argument, if there is one, is then removed: it was the agent's own, and holds the run's papers.

It runs this file alone, without site-packages, so that it starts at once and stays small; it must import nothing of
edriver. It ignores the signals that end other processes: only the end of the pipe ends it.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator


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
                (os.rmdir if name in folders else os.unlink)(path)
            except OSError:
                pass
    try:  # noqa: SIM105
        os.rmdir(folder)  # noqa: PTH106
    except OSError:
        pass


def main() -> None:
    """Keep the list that comes on standard input; kill what is on it when the agent is gone."""
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(ignored, signal.SIG_IGN)
    for group in listed_groups(lines_of(0)):
        try:  # noqa: SIM105  contextlib would triple what this process imports
            os.killpg(group, signal.SIGKILL)
        except OSError:
            pass  # all of it has ended, or belongs to another user by now
    for folder in sys.argv[1:]:
        remove(folder)


if __name__ == "__main__":
    main()
