"""A standby: a process that has imported what the script imported last time, and waits to become a worker.

It has a socket to its agent. It says there that it is ready, and reads from it, up to its end, who it is to be: the
environment of a worker, as JSON.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import select
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from edriver.common.standby import READY, STANDBY_VARIABLE

LOOK_INTERVAL = 2.0
"""Seconds between two looks whether the script has imported more meanwhile."""


def become_worker(imports: Path, prepare: Callable[[], None] | None = None) -> None:
    """Wait until this process is to be a worker, if it is a standby; it ends where it is not needed any more.

    Args:
        imports: where the slot's worker writes down what it imports, which is imported here, too.
        prepare: called whenever what a worker has imported is imported here; this process is ready after the first
            time. None: it is ready from the start.
    """
    descriptor = os.environ.pop(STANDBY_VARIABLE, None)
    if descriptor is None:
        return
    seen = None
    with socket.socket(fileno=int(descriptor)) as agent:
        if ready := prepare is None:
            _say_ready(agent)
        while True:
            if (record := _record(imports)) != seen:
                seen = record
                if preload(imports) and prepare is not None:
                    prepare()
                    if not ready:
                        ready = True
                        _say_ready(agent)
            if select.select([agent], [], [], LOOK_INTERVAL)[0]:
                break
        text = _read(agent)
    if not text:
        os._exit(0)
    os.environ.update(json.loads(text))


def _read(agent: socket.socket) -> bytes:
    """All that the agent writes, which closes its end then, whether it has read that this process is ready or not."""
    parts = []
    with contextlib.suppress(ConnectionResetError):
        while part := agent.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)


def _say_ready(agent: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the agent has ended: what is read next says so
        agent.send(READY)


def preload(path: Path) -> bool:
    """Import what the file names, in the environment of the worker that wrote it; returns whether there was such a
    file.

    The first worker of a slot has no such file yet: it imports what another slot of its host imported last, while the
    round before still trains; the first on its host what the driver knows of other hosts. If there is none, nothing is
    imported. What cannot be imported is left to the script.
    """
    try:
        record = json.loads(_file(path).read_text())
        modules, place = [str(name) for name in record["modules"]], dict(record["environment"])
    except (OSError, ValueError, KeyError, TypeError):
        return False
    with _environment(place):
        for name in modules:
            with contextlib.suppress(BaseException), contextlib.redirect_stdout(io.StringIO()):
                importlib.import_module(name)
    return True


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Have these variables in the environment meanwhile. What is set within stays: a library is not imported again."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    kept = set[str]()
    environ: Any = type(os.environ)
    set_item = environ.__setitem__

    def noting(self: Any, name: str, value: str) -> None:
        set_item(self, name, value)
        kept.add(name)

    environ.__setitem__ = noting
    try:
        yield
    finally:
        environ.__setitem__ = set_item
        for name in before.keys() - kept:
            if (value := before[name]) is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _file(path: Path) -> Path:
    """The slot's own file or, without one, that which another slot's worker has written last, or the agent.

    Raises:
        OSError: there is none, or it cannot be read.
    """
    if path.exists():
        return path
    found = [(other.stat().st_mtime_ns, other) for other in path.parent.glob(f"{path.stem}.*")]
    if not found:
        raise FileNotFoundError(path)
    return max(found)[1]


def _record(path: Path) -> tuple[Path, int] | None:
    """The file that `preload` reads, and when it was written; None: there is none."""
    try:
        file = _file(path)
        return file, file.stat().st_mtime_ns
    except OSError:
        return None
