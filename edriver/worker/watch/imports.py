"""What this process has imported of what is installed, written down for the standbys of its host, and in which
environment.

The user's own modules are left out: what they read of the environment, a rank above all, would be another's. What they
have set in it is not: KERAS_BACKEND, for one, decides what keras is once it has been imported.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Final

from edriver.model.limits import MAX_MODULES, is_module_name
from edriver.system.proc_stat import PROC_ROOT
from edriver.v1 import notification_pb2 as pb

_PACKAGE_FOLDERS: Final = ("/site-packages/", "/dist-packages/")
"""Where packages are installed, in whichever environment."""


class StartEnvironment:
    """The environment in which this worker's script began; of a process it is the one that it was started with.

    Attributes:
        variables: the environment. A standby that becomes a worker puts the worker's here.
    """

    def __init__(self) -> None:
        self.variables: Mapping[str, str] = _as_started()


def _as_started(proc: Path = PROC_ROOT) -> Mapping[str, str]:
    """What this process was started with: the script may have set variables before it imported edriver."""
    try:
        entries = (proc / "self" / "environ").read_bytes().split(b"\0")
    except OSError:
        return dict(os.environ)
    pairs = (os.fsdecode(entry).partition("=") for entry in entries if entry)
    return {name: value for name, _, value in pairs}


class ImportRecord:
    """What this process has imported, in a file.

    Args:
        path: the file.
        place: this process's place, from the environment, before the script begins.
        report: called with the names of modules that were not there before, and the environment in which they were
            imported; None: they are not reported.
        before: the environment before the script; None: as it is now.
    """

    def __init__(
        self,
        path: Path,
        place: Mapping[str, str],
        report: Callable[[Sequence[str], Mapping[str, str]], None] | None = None,
        before: Mapping[str, str] | None = None,
    ) -> None:
        self._path = path
        self._place = dict(place)
        self._report = report
        self._before = dict(os.environ if before is None else before)
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


def imported_report(names: Sequence[str], environment: Mapping[str, str]) -> pb.Report:
    """What is new in an ImportRecord, for the driver, which passes it on to hosts that have had no worker yet."""
    printable = {name: value for name, value in environment.items() if f"{name}{value}".isprintable()}
    return pb.Report(modules_imported=pb.ModulesImported(names=names, environment=printable))


def _installed(modules: Mapping[str, ModuleType]) -> Iterator[str]:
    standard = tuple(f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib"))
    for name, module in modules.items():
        file = getattr(module, "__file__", None)
        if name in ("__main__", "__mp_main__") or not isinstance(file, str):
            continue
        own = name.partition(".")[0] == "edriver"  # wherever it lies
        if own or file.startswith(standard) or any(folder in file for folder in _PACKAGE_FOLDERS):
            yield name
