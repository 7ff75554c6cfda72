"""A standby: a process that has imported what the script imported last time, and waits to become a worker.

It reads from a pipe, up to its end, who it is to be: the environment of a worker, as JSON.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import select
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from edriver.model.limits import MAX_MODULES, is_module_name

STANDBY_VARIABLE = "EDRIVER_STANDBY"
"""Names the descriptor of that pipe; absent: the process is a worker from the start."""


_PACKAGE_FOLDERS: Final = ("/site-packages/", "/dist-packages/")
"""Where packages are installed, in whichever environment."""

LOOK_INTERVAL = 2.0
"""Seconds between two looks whether the script has imported more meanwhile."""


def become_worker(imports: Path) -> None:
    """Wait until this process is to be a worker, if it is a standby; it ends where it is not needed any more.

    Args:
        imports: where the slot's worker writes down what it imports, which is imported here, too.
    """
    descriptor = os.environ.pop(STANDBY_VARIABLE, None)
    if descriptor is None:
        return
    seen = 0
    with open(int(descriptor), "rb") as pipe:  # noqa: PTH123  a descriptor
        while not select.select([pipe], [], [], LOOK_INTERVAL)[0]:
            with contextlib.suppress(OSError):
                if (changed := imports.stat().st_mtime_ns) != seen:
                    seen = changed
                    preload(imports)
        text = pipe.read()
    if not text:
        os._exit(0)
    os.environ.update(json.loads(text))


def preload(path: Path) -> None:
    """Import what the file names, in the environment of the worker that wrote it.

    The first worker of a slot has no such file yet: it imports what another slot of its host imported last, while the
    round before still trains; the first on its host what the driver knows of other hosts. If there is none, nothing is
    imported. What cannot be imported is left to the script.
    """
    try:
        record = json.loads((path if path.exists() else _latest_beside(path)).read_text())
        modules, place = [str(name) for name in record["modules"]], dict(record["environment"])
    except (OSError, ValueError, KeyError, TypeError):
        return
    with _environment(place):
        for name in modules:
            with contextlib.suppress(BaseException), contextlib.redirect_stdout(io.StringIO()):
                importlib.import_module(name)


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


def _latest_beside(path: Path) -> Path:
    """The file that another slot's worker has written last, or the agent.

    Raises:
        OSError: neither has written a file, or it cannot be read.
    """
    found = [(other.stat().st_mtime_ns, other) for other in path.parent.glob(f"{path.stem}.*")]
    if not found:
        raise FileNotFoundError(path)
    return max(found)[1]


class ImportRecord:
    """What this process has imported of what is installed, in a file, for the slot's standby, and in which environment.

    The user's own modules are left out: what they read of the environment, a rank above all, would be another's. What
    they have set in it is not: KERAS_BACKEND, for one, decides what keras is once it has been imported.

    Args:
        path: the file.
        place: this process's place, from the environment, before the script begins.
        report: called with the names of modules that were not there before, and the environment in which they were
            imported; None: they are not reported.
    """

    def __init__(
        self,
        path: Path,
        place: Mapping[str, str],
        report: Callable[[Sequence[str], Mapping[str, str]], None] | None = None,
    ) -> None:
        self._path = path
        self._place = dict(place)
        self._report = report
        self._before = dict(os.environ)
        self._written: tuple[int, dict[str, str]] | None = None
        self._reported: set[str] = set()

    def update(self) -> None:
        """Write it again if more modules are there than before, or other variables."""
        changed = {name: value for name, value in os.environ.items() if self._before.get(name) != value}
        environment = {**self._place, **changed}
        now = len(sys.modules), environment
        if now == self._written:
            return
        self._written = now
        modules = list(_installed(dict(sys.modules)))
        if self._report is not None:
            names = [name for name in modules if name not in self._reported and is_module_name(name)][:MAX_MODULES]
            self._reported.update(names)
            if names:
                self._report(names, environment)
        new = self._path.with_suffix(f".{os.getpid()}")
        with contextlib.suppress(OSError):  # the standby will have imported less
            new.write_text(json.dumps({"modules": modules, "environment": environment}))
            new.replace(self._path)


def _installed(modules: Mapping[str, ModuleType]) -> Iterator[str]:
    standard = tuple(f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib"))
    for name, module in modules.items():
        file = getattr(module, "__file__", None)
        if name in ("__main__", "__mp_main__") or not isinstance(file, str):
            continue
        if file.startswith(standard) or any(folder in file for folder in _PACKAGE_FOLDERS):
            yield name
