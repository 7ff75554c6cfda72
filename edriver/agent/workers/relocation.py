"""Which Python environment a host's workers run in, and what their command and environment become in a copy of it.

Thousands of processes that import torch from one shared file system look for the same tens of thousands of files at
once. With --copy-environment each host reads them once, before its first worker starts, and workers and standbys start
from its own disk. The command's interpreter and the environment's programs lead into the copy by their paths, PATH and
the like; the script, the data and the working folder stay where they are.

What is written into files as an absolute path still leads to the original: projects that are installed to be edited,
.pth files, prefixes that conda has written into text and binaries. Only the first lines of the environment's programs
are changed, for else these would start the shared interpreter again.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from edriver.common.copied_environment import COPIED_FROM

_PYTHON: Final = re.compile(r"python(\d+(\.\d+)?t?)?")
"""How a Python interpreter is called."""

_SHEBANG: Final = re.compile(rb"/[^\s\"']*/python[\d.]*t?(?=[\s\"']|$)")
"""An interpreter in the first lines of a console script."""

_HEAD_BYTES: Final = 1024
"""How much of a program is read for its first lines."""

_MAX_PROGRAM_BYTES: Final = 1 << 20
"""Larger ones are no scripts."""

_MAX_SHEBANG: Final = 127
"""Characters that kernels before 5.1 read of a first line."""

_SYSTEM: Final = frozenset({"/", "/usr", "/usr/local", "/opt"})
"""Prefixes of the system's Python: on the host's own disk, with everything else that is installed there."""

_PATHS: Final = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX")
"""The variables that lead into an environment."""


def environment_folder(command: Sequence[str], environment: Mapping[str, str]) -> Path | None:
    """The folder of the Python environment that a command runs in; None: it is the system's, or there is none.

    It is that of the first interpreter that the command names, by its name or in the first line of its program; else
    that which is active, or the first on PATH.

    Raises:
        OSError: a folder cannot be read.
    """
    program = next(_interpreters(command, environment), None)
    if program is None:
        return None
    # As Python finds it: pyvenv.cfg lies beside the link by which it was started, all else where that leads to.
    folders = (path.parent.parent for path in (Path(os.path.normpath(program.absolute())), program.resolve()))
    return next(filter(_is_environment, folders), None)


def _interpreters(command: Sequence[str], environment: Mapping[str, str]) -> Iterator[Path]:
    """Interpreters that are there, the likeliest first."""
    path = environment.get("PATH")
    for word in command:
        if _PYTHON.fullmatch(Path(word).name) and (program := shutil.which(word, path=path)):
            yield Path(program)
    if (
        command
        and (program := shutil.which(command[0], path=path))
        and (named := _SHEBANG.search(_head(Path(program))))
    ):
        yield Path(os.fsdecode(named[0]))
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if (folder := environment.get(variable)) and (python := Path(folder, "bin", "python")).exists():
            yield python
    for name in ("python", "python3"):
        if program := shutil.which(name, path=path):
            yield Path(program)


def _is_environment(folder: Path) -> bool:
    """Whether this is the folder of a virtual environment, of one of conda, or of a Python apart from the system's."""
    if str(folder.resolve()) in _SYSTEM:
        return False
    if any((folder / name).exists() for name in ("pyvenv.cfg", "conda-meta")):
        return True
    libraries = folder / "lib"
    return libraries.is_dir() and any(_PYTHON.fullmatch(entry.name) for entry in libraries.iterdir())


def _head(program: Path) -> bytes:
    """The first line of a script, or two where pip has put the interpreter into the second; empty for what is none."""
    try:
        with program.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return b""
    lines = head.split(b"\n")
    count = 2 if len(lines) > 1 and lines[1].startswith(b"'''exec'") else 1
    return b"\n".join(lines[:count]) if head.startswith(b"#!") else b""


def lead_programs_into(source: Path, copy: Path) -> None:
    """Have the programs of a copied environment name the copy in their first lines, where they named the original.

    Raises:
        OSError: one of them cannot be changed.
    """
    spellings = {os.fsencode(source), os.fsencode(source.resolve())}
    for program in (copy / "bin").iterdir():
        if program.is_symlink() or not program.is_file() or program.stat().st_size > _MAX_PROGRAM_BYTES:
            continue
        head = new = _head(program)
        for spelling in spellings:
            new = new.replace(spelling + b"/", os.fsencode(copy) + b"/")
        if new != head and len(new.partition(b"\n")[0]) <= _MAX_SHEBANG:
            program.write_bytes(new + program.read_bytes()[len(head) :])


class Relocation:
    """What a worker's command and environment become in the copy.

    Args:
        source: the folder of the Python environment.
        copy: its copy.

    Attributes:
        source, copy: as given.
    """

    def __init__(self, source: Path, copy: Path) -> None:
        self.source = source
        self.copy = copy
        self._real = source.resolve()

    def command(self, words: Sequence[str], path: str | None) -> tuple[str, ...]:
        """A command whose programs are those of the copy.

        Args:
            words: the command.
            path: the PATH with which it is found.
        """
        return tuple(self._program(word, path) for word in words)

    def environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Variables that lead into the copy."""
        moved = {
            name: os.pathsep.join(map(self._folder, variables[name].split(os.pathsep)))
            for name in _PATHS
            if name in variables
        }
        return {**variables, **moved, COPIED_FROM: str(self.source)}

    def _program(self, word: str, path: str | None) -> str:
        """The program of the copy that a word names by its path, or an interpreter through a link elsewhere."""
        name = Path(word).name
        programs = self._real / "bin"
        if "/" in word and Path(word).parent.resolve() == programs:
            program = self.copy / "bin" / name
        elif _PYTHON.fullmatch(name) and (found := shutil.which(word, path=path)):
            end = Path(found).resolve()
            if end.parent != programs or Path(found).parent.resolve() == programs:
                return word  # another environment's, or found in the copy by PATH
            program = self.copy / "bin" / end.name
        else:
            return word
        return str(program) if program.exists() else word

    def _folder(self, path: str) -> str:
        if not path:
            return path
        real = Path(path).resolve()
        return str(self.copy / real.relative_to(self._real)) if real.is_relative_to(self._real) else path
