"""The guard: a small process that outlives whom it guards just long enough to clear up after it.

However that process ends, SIGKILL included, the pipe from it then reads as ended: every process group on the list is
killed. The list comes through the pipe: a line "+PGID" puts a group on it, "-PGID" takes it off, "/FOLDER" names
another folder to remove, and "." says that the process ends in order. Then whatever carries the mark is killed, be it a
daemon that has left its group, or what was started a moment ago and is on no list.

The folder is then removed: the process's own, with its sockets and TLS credentials. Arguments are the folder and the
mark, a variable of the environment as NAME=VALUE; each may be empty.

It runs this file alone, without site-packages, so that it starts at once and stays small; it must import nothing of
edriver. It ignores the signals that end other processes: only the end of the pipe ends it.

The driver's guard ends its clients of ssh, which would continue to wait for hosts that do not answer, and discovery's
script. An agent's ends the groups of its workers. Both guards run before the folder is made, so that a kill leaves no
folder at any moment. With a journal, the driver's guard leaves the run's folder where it is: agents wait there for the
next driver.
"""

from __future__ import annotations

import os
import signal
import stat
import sys
import time
from collections.abc import Iterator

MAX_KILL_ROUNDS, QUIET_ROUNDS, KILL_INTERVAL = 100, 5, 0.01
"""How often it looks for what is left, at most; how often in a row it must find nothing; the seconds between two looks.
The killed take a moment to be gone, and what has just been forked has yet to get its own environment."""


def lines_of(fd: int) -> Iterator[bytes]:
    """The lines of a pipe until it ends; one that was cut short by the writer's death is left out."""
    rest = b""
    while chunk := os.read(fd, 4096):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines


def duties(lines: Iterator[bytes]) -> tuple[set[int], list[str], bool]:
    """The process groups on the list after its last line, other folders, and whether the process has ended in order.

    Any other line is ignored: a guard that ended at one would leave everything else on its list alive.
    """
    groups: set[int] = set()
    folders: list[str] = []
    in_order = False
    for line in lines:
        group = group_of(line[1:])
        if line == b".":
            in_order = True
        elif line[:1] == b"/":
            folders.append(os.fsdecode(line))
        elif group and line[:1] == b"+":
            groups.add(group)
        elif group and line[:1] == b"-":
            groups.discard(group)
    return groups, folders, in_order


def group_of(text: bytes) -> int:
    """The process group that a number stands for; 0: it stands for none that may be killed.

    To killpg, 0 is the caller's own group and 1 every process of the user. Linux has no process id of 8 digits.
    """
    number = int(text) if text.isdigit() and len(text) < 8 else 0
    return number if number > 1 else 0


def kill_marked(mark: bytes, user: int | None = None) -> int:
    """Kill every other process with this in its environment; returns how many there were.

    Args:
        mark: a whole variable, NAME=VALUE and a zero byte; or, without the zero, what one begins with.
        user: only processes of this user id; None: of any.
    """
    found = 0
    for name in os.listdir("/proc"):  # noqa: PTH208  pathlib would triple what this process imports
        if not name.isdecimal() or int(name) == os.getpid():
            continue
        try:
            process = os.pidfd_open(int(name))  # before the look: the number may come to mean another
        except OSError:
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as environ:  # noqa: PTH123
                theirs = user is None or os.fstat(environ.fileno()).st_uid == user
                if theirs and b"\0" + mark in b"\0" + environ.read() + b"\0":
                    found += 1
                    signal.pidfd_send_signal(process, signal.SIGKILL)
        except OSError:
            pass  # it has ended, or is another user's
        finally:
            os.close(process)
    return found


def remove(folder: str) -> None:
    """Remove a folder with all that is in it; what cannot be removed stays.

    A link, or a folder of another user's, that stands at its place is left alone: what it leads to is not ours.
    """
    try:
        found = os.lstat(folder)
    except OSError:
        return
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        return
    for place, folders, files in os.walk(folder, topdown=False):
        for name in (*files, *folders):
            path = os.path.join(place, name)  # noqa: PTH118
            try:  # noqa: SIM105
                (os.rmdir if name in folders and not os.path.islink(path) else os.unlink)(path)  # noqa: PTH114
            except OSError:
                pass
    try:  # noqa: SIM105
        os.rmdir(folder)  # noqa: PTH106
    except OSError:
        pass


def main() -> None:
    """Keep the list that comes on standard input; clear up when its writer is gone."""
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(ignored, signal.SIG_IGN)
    groups, other_folders, in_order = duties(lines_of(0))
    for group in groups:
        try:  # noqa: SIM105  contextlib would triple what this process imports
            os.killpg(group, signal.SIGKILL)
        except OSError:
            pass  # all of it has ended, or belongs to another user by now
    folder, mark, keep = sys.argv[1:]
    if keep and not in_order:
        folder = ""
    nothing = 0
    for _ in range(MAX_KILL_ROUNDS):
        found = bool(mark) and kill_marked(os.fsencode(mark) + b"\0") > 0
        if folder:
            remove(folder)
        nothing = 0 if found or os.path.exists(folder) else nothing + 1  # noqa: PTH110
        if nothing == (1 if in_order else QUIET_ROUNDS):
            break
        time.sleep(KILL_INTERVAL)
    for other in other_folders:
        remove(other)


if __name__ == "__main__":
    main()
