"""The source files of the user's own that this process has loaded: the script, and modules beside and below it.

A worker reports the SHA-256 of each: before it offers for the first time, in restart mode when the script begins, and
at signs of life once it has imported more. The driver announces what differs from what the run began with; no decision
follows from it. The first report of a file's content is an event, so the journal has it for the next driver; further
reports of the same content are dropped.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Final

from edriver.common.copied_environment import COPIED_FROM
from edriver.model.limits import MAX_NAME_LENGTH
from edriver.v1 import notification_pb2 as pb
from edriver.worker.watch.script_location import PACKAGE_ROOT

MAX_FILES: Final = 500
"""Most files that are read."""

MAX_FILE_BYTES: Final = 1 << 20
"""Larger files are left out."""

_INSTALLED: Final = {"site-packages", "dist-packages"}


class SourceFiles:
    """Finds those that have been loaded since the last look. A look that finds no new module compares two numbers."""

    def __init__(self) -> None:
        self._folder = Path.cwd()  # the script may leave it
        self._modules = 0
        self._seen: set[str] = set()
        self._count = 0
        self._looking: threading.Thread | None = None

    def script(self, file: str | None) -> list[pb.SourceFile]:
        """A script that is about to be run; None: a module, which the next look finds."""
        self._modules = 0
        if file is None:
            return []
        return list(self._read(self._folder / file, 0, ()))

    def look(self, report: Callable[[list[pb.SourceFile]], None]) -> None:
        """If more modules were loaded, report their files, in a separate thread because a file system may hang."""
        if len(sys.modules) == self._modules or (self._looking is not None and self._looking.is_alive()):
            return
        self._looking = threading.Thread(target=lambda: report(self.new()), name="edriver-source-files", daemon=True)
        self._looking.start()

    def new(self) -> list[pb.SourceFile]:
        """The files that were loaded since the last look, with what they hold now."""
        count, self._modules = self._modules, len(sys.modules)
        script = sys.modules.get("__main__")
        if count == self._modules or script is None or (path := self._path_of(script)) is None:
            return []
        package = script.__spec__.parent if script.__spec__ is not None else ""
        level = len(package.split(".")) if package else 0
        modules = list(sys.modules.values())
        return list(self._read(path, level, (getattr(module, "__file__", None) for module in modules)))

    def _path_of(self, script: ModuleType) -> Path | None:
        """The script's file; None if it has no file, or if edriver's own main module has not started it yet."""
        file = getattr(script, "__file__", None)
        if not isinstance(file, str):
            return None
        path = self._folder / file
        return None if path.resolve().is_relative_to(PACKAGE_ROOT) else path

    def _read(self, script: Path, level: int, files: Iterable[object]) -> Iterator[pb.SourceFile]:
        """Read new files in the folder of the script, or so many levels above: of its outermost package."""
        root = script.resolve().parents[level]
        # Before the script's own name is resolved and after it: its folder may be reached by a link.
        folders = tuple({f"{root}{os.sep}", f"{script.parents[level]}{os.sep}"})
        for file in (str(script), *files):
            if not isinstance(file, str) or file in self._seen or self._count >= MAX_FILES:
                continue
            self._seen.add(file)
            if file == str(script) or (file.startswith(folders) and file.endswith(".py")):
                path = Path(file).resolve()
                if path.is_relative_to(root) and _is_users(path) and (found := _source_file(path, root)) is not None:
                    self._count += 1
                    yield found


def _is_users(path: Path) -> bool:
    if COPIED_FROM in os.environ and path.is_relative_to(sys.prefix):
        return False  # a console script: its first line names this host's copy
    return not path.is_relative_to(PACKAGE_ROOT) and _INSTALLED.isdisjoint(path.parts)


def _source_file(path: Path, root: Path) -> pb.SourceFile | None:
    name = str(path.relative_to(root))
    if len(name) > MAX_NAME_LENGTH or not name.isprintable():
        return None
    try:
        about = path.stat()
        if about.st_size > MAX_FILE_BYTES:
            return None
        found = pb.SourceFile(name=name, digest=hashlib.sha256(path.read_bytes()).digest())
    except OSError:
        return None
    found.modify_time.FromNanoseconds(about.st_mtime_ns)
    return found
