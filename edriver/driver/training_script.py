"""Whether a command's script uses edriver's rounds, found without running it: its command line and source are read."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from edriver.driver.core.mode import Mode

_PYTHON_PATTERN: Final = re.compile(r"python(\d+(\.\d+)?)?")
"""How a Python interpreter is called."""

_FLAGS_WITH_VALUE: Final = "WX"
"""Flags of the interpreter whose value may be a word of its own (`python --help`)."""

_OUTSIDE_ROUNDS: Final = frozenset({"checkpoint_requested"})
"""What of edriver a script in restart mode may use."""

_MAX_SOURCES: Final = 500
"""Most files that are read: a script's own, and those beside it that it imports."""


@dataclass(frozen=True, slots=True)
class PythonCommand:
    """A command that runs a Python script, taken apart.

    Attributes:
        interpreter: the program and its flags.
        module: whether the script is named as a module (`-m`).
        script: the script's file, or the module's name.
        arguments: what the script is given.
    """

    interpreter: tuple[str, ...]
    module: bool
    script: str
    arguments: tuple[str, ...]

    @classmethod
    def of(cls, command: Sequence[str]) -> PythonCommand | None:
        """Take a command apart; None: it is not Python's, or names no script."""
        if not command or not _PYTHON_PATTERN.fullmatch(Path(command[0]).name):
            return None
        words = list(command)
        at = 1
        while at < len(words) and words[at].startswith("-") and words[at] != "-":
            word = words[at]
            cluster = "" if word.startswith("--") else word[1:]
            for place, letter in enumerate(cluster):
                if letter in "cm":
                    return cls._named(words, at, place) if letter == "m" else None
                if letter in _FLAGS_WITH_VALUE:
                    at += place == len(cluster) - 1  # the value is the next word
                    break
            at += 1
        if at >= len(words) or words[at] == "-":
            return None
        return cls(tuple(words[:at]), False, words[at], tuple(words[at + 1 :]))

    @classmethod
    def _named(cls, words: Sequence[str], at: int, place: int) -> PythonCommand | None:
        """A module, named behind the letter m at this place of this word."""
        before, name = words[at][1 : place + 1], words[at][place + 2 :]
        interpreter = (*words[:at], *([f"-{before}"] if before else []))
        rest = words[at + 1 :]
        if not name:
            if not rest:
                return None
            name, rest = rest[0], rest[1:]
        return cls(interpreter, True, name, tuple(rest))

    def in_restart_mode(self) -> tuple[str, ...]:
        """The command of a worker that runs the script when it is given a place in a round."""
        named = ("-m", self.script) if self.module else (self.script,)
        return (*self.interpreter, "-m", "edriver.worker.restart", *named, *self.arguments)


@dataclass(frozen=True, slots=True)
class ModeChoice:
    """A run's mode, and why it is that one.

    Attributes:
        mode: the mode.
        reason: in a clause.
    """

    mode: Mode
    reason: str

    def __str__(self) -> str:
        what = {
            Mode.ELASTIC: "its processes outlive the loss of others",
            Mode.RESTART: "all its processes are restarted together, and load its newest checkpoint",
        }[self.mode]
        return f"{self.mode.value} mode ({self.reason}): {what}"


def mode_of(command: PythonCommand | None, folder: Path, search: Sequence[Path] = ()) -> ModeChoice:
    """The mode that suits a command.

    Args:
        command: the command; None: it is not Python's.
        folder: where it is run.
        search: where else modules are looked for: PYTHONPATH.
    """
    if command is None:
        return ModeChoice(Mode.ELASTIC, "the command does not name a Python script whose source could be read")
    roots = (folder, *search)
    path = _file_of(command, roots)
    if path is None:
        return ModeChoice(Mode.ELASTIC, f"no source of {command.script} was found here")
    try:
        used = next(_uses_rounds(path, (path.parent, *(roots if command.module else ()))), None)
    except (OSError, SyntaxError, ValueError):
        return ModeChoice(Mode.ELASTIC, f"the source of {command.script} cannot be read")
    if used is None:
        return ModeChoice(Mode.RESTART, f"{command.script} does not use edriver")
    return ModeChoice(Mode.ELASTIC, f"{used.name} uses edriver")


def _file_of(command: PythonCommand, roots: Sequence[Path]) -> Path | None:
    if not command.module:
        path = roots[0] / command.script
        return next((found for found in (path, path / "__main__.py") if found.is_file()), None)
    for root in roots:
        path = root.joinpath(*command.script.split("."))
        for found in (path.with_name(f"{path.name}.py"), path / "__main__.py"):
            if found.is_file():
                return found
    return None


def _uses_rounds(script: Path, roots: Sequence[Path]) -> Iterator[Path]:
    """The sources that use edriver's rounds: the script's own, and those of modules beside it that it imports.

    Raises:
        OSError, SyntaxError, ValueError: the script itself cannot be read.
    """
    left, seen = [script], {script}
    while left:
        path = left.pop(0)
        try:
            tree = ast.parse(path.read_bytes(), str(path))
        except (OSError, SyntaxError, ValueError):
            if path == script:
                raise
            continue  # the script will meet that, if it comes so far
        if _of_edriver(tree) - _OUTSIDE_ROUNDS:
            yield path
        for name in _imported(tree):
            for folder in {path.parent, *roots}:
                module = folder.joinpath(*name.split("."))
                for found in (module.with_name(f"{module.name}.py"), module / "__init__.py"):
                    if found not in seen and len(seen) < _MAX_SOURCES and found.is_file():
                        seen.add(found)
                        left.append(found)


def _of_edriver(tree: ast.AST) -> set[str]:
    """What a source takes of edriver, by name; a module of it, or all of it, counts as a name, too."""
    used: set[str] = set()
    aliases: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names):
                for alias in names:
                    if alias.name == "edriver":
                        aliases.add(alias.asname or alias.name)
                    elif alias.name.startswith("edriver."):
                        used.add(alias.name)
            case ast.ImportFrom(module=str(module), names=names, level=0):
                if module == "edriver":
                    used |= {alias.name for alias in names}
                elif module.startswith("edriver."):
                    used.add(module)
    if aliases:
        members = {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in aliases
        }
        used |= members or {"edriver"}
    return used


def _imported(tree: ast.AST) -> Iterator[str]:
    """The modules that a source imports, as names that may be files beside it."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=module, names=names):
                if module:
                    yield module
                prefix = f"{module}." if module else ""
                yield from (f"{prefix}{alias.name}" for alias in names if alias.name != "*")
