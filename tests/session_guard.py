"""Ends what a session of tests, or of a benchmark, has started, however that session ends: SIGKILL included.

`guard_this_session()` puts a variable into this process's environment, which all that it starts inherits, and starts
this file as a process of its own. That one waits for the session's end and then kills every process that carries the
variable, wherever it has gone: another session, another parent, another network namespace. The guards of edriver itself
go last: they remove the folders of the runs that were killed. Network namespaces that the session has made, and its
folder for temporary files, go, too.

It imports nothing but the standard library, and holds nothing of the session's but a descriptor of its process: a
forked child that outlives the session does not keep it waiting, as an inherited pipe would.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

MARK = "EDRIVER_TEST_SESSION_"
"""How the variable's name begins. Each session has one of its own, so that one inside another carries both."""

TEST_MARK = "EDRIVER_TEST_CASE_"
"""The same of a single test."""

NAMESPACES = Path("/run/netns")
PRODUCT_GUARD = "guard_main.py"
GRACE = 10.0
"""Seconds that edriver's own guards have to remove what is theirs, once all else is gone."""


def guard_this_session(*folders: str) -> None:
    """Have all that this process starts from now on end with it, and these folders go."""
    name = f"{MARK}{secrets.token_hex(8)}"
    process = os.pidfd_open(os.getpid())
    try:
        subprocess.run(  # it forks and is done: the guard is no child of ours, which a test might count or wait for
            [sys.executable, "-I", "-S", __file__, name, namespace_prefix(), *folders],
            stdin=process,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # what ends the session's process group does not end it
            check=True,
        )
    finally:
        os.close(process)
    os.environ[name] = "1"


def marks() -> dict[str, str]:
    """The variables of the sessions and tests that this process is part of, for one that does not inherit them."""
    return {name: value for name, value in os.environ.items() if name.startswith((MARK, TEST_MARK))}


def namespace_prefix() -> str:
    """How the names of the network namespaces begin that this process makes."""
    return f"edriver-{os.getpid()}-"


def commands_of(name: str) -> dict[int, str]:
    """The living processes that carry this variable, zombies and this one aside: command lines by process id."""
    wanted = f"{name}=1".encode()
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):  # it has ended meanwhile, or is another user's
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
                    found[int(entry.name)] = command.decode(errors="replace")
    return found


def end_all(name: str) -> None:
    """Kill what carries this variable, and wait until it is gone."""
    deadline = time.monotonic() + GRACE
    while _kill(name, spare=PRODUCT_GUARD) and time.monotonic() < deadline:
        time.sleep(0.02)
    while _kill(name, spare=None):
        time.sleep(0.02)


def _kill(name: str, spare: str | None) -> bool:
    """Kill what carries the variable; returns whether there was anything, spared or not."""
    found = commands_of(name)
    for pid, command in found.items():
        if spare is None or spare not in command:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
    return bool(found)


def _delete_namespaces(prefix: str) -> None:
    for path in NAMESPACES.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):  # there is no ip(8) here, but then there are no namespaces of ours either
            subprocess.run(["ip", "netns", "delete", path.name], timeout=120, check=False)


def main(name: str, prefix: str, *folders: str) -> None:
    """Wait for the end of the process whose descriptor is standard input, then clear up; as a process of its own."""
    if os.fork():
        return
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(ignored, signal.SIG_IGN)
    select.select([0], [], [])
    end_all(name)
    _delete_namespaces(prefix)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
