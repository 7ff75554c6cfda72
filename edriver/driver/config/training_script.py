"""Whether a command's script uses edriver's rounds, found without running it: its command line and source are read.

It cannot wait for what the script does, because the mode decides how a script begins. In restart mode its first line is
run once its process has a place in a round, with RANK and WORLD_SIZE in the environment, which scripts read as they are
imported. In elastic mode it is run at once: it imports and builds while others train, and its place comes when it calls
`run`. To run it first in order to see which it is would do twice what a script does to files, ports and GPUs.

Imports are followed, because `run` may be called anywhere: a console script imports one function, and that imports the
package's trainer. If the answer is wrong, the worker says so where `run` is called in restart mode.

It looks for Python in the command line (`python [flags] script.py`, `python -m module`), behind other programs (`env`,
`nice`, `uv run`) and in the first line of the script as well, then reads the source and the modules beside it, of a
console script those of its package, and looks for uses of edriver. A program that is not Python stays elastic.
"""

from __future__ import annotations

import ast
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from edriver.model.mode import Mode

_PYTHON_PATTERN: Final = re.compile(r"python(\d+(\.\d+)?)?")
"""How a Python interpreter is called."""

_PIPS_SHEBANG: Final = re.compile(r"'''exec' (\".+?\"|\S+) ")
"""The second line of a console script whose interpreter's path is too long for the first one, which names /bin/sh."""

_SCRIPT_METADATA: Final = b"# /// script"
"""Begins the dependencies of a script that `uv run` gives its own environment."""

_HEAD_BYTES: Final = 1024
"""How much of a file is read for its first lines."""

_OTHER_LAUNCHERS: Final = frozenset({"accelerate", "colossalai", "deepspeed", "horovodrun", "torchrun"})
"""Programs that start a script's processes themselves."""

_FLAGS_WITH_VALUE: Final = "WX"
"""Flags of the interpreter whose value may be a word of its own (`python --help`)."""

_OUTSIDE_ROUNDS: Final = frozenset({"checkpoint_requested", "checkpoints", "edriver.checkpoints"})
"""What of edriver a script in restart mode may use."""

_SHARDED_STATE: Final = "ShardedState"
"""What of edriver a script uses whose optimizer's steps are sealed."""

_MAX_SOURCES: Final = 500
"""Most files that are read: a script's own, and those beside it that it imports."""


@dataclass(frozen=True, slots=True)
class PythonCommand:
    """A command that runs a Python script, taken apart.

    Attributes:
        interpreter: the program and its flags, behind what the command has before them: `env A=1`, `nice`, `uv run`.
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
        """Take a command apart.

        The interpreter may stand behind another program (`env A=1 python train.py`, `./wrap.sh python train.py`), or be
        named by a script's first line (`./train.py`, the console script of a package).

        Returns:
            None: the command names no Python script, or a program that starts a script's processes itself.
        """
        words = list(command)
        for at, word in enumerate(words):
            name = Path(word).name
            if name in _OTHER_LAUNCHERS:
                return None
            if _PYTHON_PATTERN.fullmatch(name):
                if (found := cls._interpreted(words, at)) is not None or at == 0:
                    return found
            elif at == 0 or not words[at - 1].startswith("-"):  # else it may be a flag's value
                if interpreter := _shebang(word, program=at == 0):
                    script = word if "/" in word else str(shutil.which(word))
                    return cls((*words[:at], *interpreter), False, script, tuple(words[at + 1 :]))
                if Path(words[0]).name == "uv" and name.endswith(".py") and _runs_as_it_is(Path(word)):
                    return cls((*words[:at], "python"), False, word, tuple(words[at + 1 :]))
        return None

    @classmethod
    def _interpreted(cls, words: Sequence[str], at: int) -> PythonCommand | None:
        """What the interpreter at this place is to run; None: code, standard input, or nothing."""
        at += 1
        if at < len(words) and _PYTHON_PATTERN.fullmatch(words[at]):
            return None  # the first is the value of a flag, such as the name of an environment
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
        return self._within("edriver.worker.restart")

    def as_standby(self) -> tuple[str, ...]:
        """The command of a process that runs the script when it becomes a worker, in elastic mode."""
        return self._within("edriver.worker.elastic_standby")

    def _within(self, module: str) -> tuple[str, ...]:
        named = ("-m", self.script) if self.module else (self.script,)
        return (*self.interpreter, "-m", module, *named, *self.arguments)


def program_in_restart_mode(command: Sequence[str]) -> tuple[str, ...]:
    """The command of a worker that runs a program that is no Python script when it is given a place in a round."""
    return (sys.executable, "-P", "-m", "edriver.worker.restart", "--", *command)


def is_bare_script(program: str) -> bool:
    """Whether a program is a Python script that needs an interpreter before it: it is not executable, or its first line
    names none.
    """
    if not program.endswith(".py") or not Path(program).is_file():
        return False
    found = shutil.which(program)
    if found is None:
        return True
    try:
        with Path(found).open("rb") as file:
            return file.read(2) != b"#!"
    except OSError:
        return False


def other_launcher(command: Sequence[str]) -> str:
    """The program in a command that starts a script's processes itself; empty if there is none."""
    return next((name for word in command if (name := Path(word).name) in _OTHER_LAUNCHERS), "")


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
            Mode.RESTART: (
                "all its processes are restarted together, from the checkpoint that the script loads or from its "
                "beginning"
            ),
        }[self.mode]
        return f"{self.mode.value} mode ({self.reason}): {what}"


def mode_of(command: Sequence[str], folder: Path, search: Sequence[Path] = ()) -> ModeChoice:
    """The mode that suits a command.

    Args:
        command: the command.
        folder: where it is run.
        search: where else modules are looked for: PYTHONPATH.
    """
    python = PythonCommand.of(command)
    if python is None:
        if name := other_launcher(command):
            return ModeChoice(Mode.ELASTIC, f"{name} starts processes itself: put edriver in its place")
        return _unknown("the command does not name a Python script whose source could be read")
    roots = (folder, *search)
    path = _file_of(python, roots)
    if path is None:
        return _unknown(f"the source of {python.script} was not found here")
    name = python.script if python.module else path.name
    try:
        sources = _sources_of(python, path, roots)
        if sources is None:
            return _unknown(f"the source of what {name} imports was not found here")
        used = next((source for source, names in sources if names - _OUTSIDE_ROUNDS), None)
    except (OSError, SyntaxError, ValueError):
        return _unknown(f"the source of {name} cannot be read")
    if used is None:
        return ModeChoice(Mode.RESTART, f"{name} does not call edriver.run")
    return ModeChoice(Mode.ELASTIC, f"{used.name} uses edriver")


def source_of_sharded_state(command: Sequence[str], folder: Path, search: Sequence[Path] = ()) -> Path | None:
    """Where a command's script makes an edriver.ShardedState; None: nowhere in what can be read of it.

    Args:
        command: the command.
        folder: where it is run.
        search: where else modules are looked for: PYTHONPATH.
    """
    python = PythonCommand.of(command)
    roots = (folder, *search)
    path = _file_of(python, roots) if python is not None else None
    if python is None or path is None:
        return None
    try:
        sources = _sources_of(python, path, roots) or ()
        return next((source for source, names in sources if _SHARDED_STATE in names), None)
    except (OSError, SyntaxError, ValueError):
        return None


def _unknown(reason: str) -> ModeChoice:
    return ModeChoice(Mode.ELASTIC, f"{reason}; a script that never calls edriver.run needs --mode restart")


def _shebang(word: str, *, program: bool) -> tuple[str, ...]:
    """The interpreter that the first line of an executable file names, with its flags; empty: it is not Python.

    Args:
        word: the file, or a command on PATH.
        program: whether it is the program that is run; else a file of any name counts only with a folder.
    """
    found = shutil.which(word) if program or "/" in word or not word.endswith(".py") else None
    if found is None:
        return ()
    try:
        with Path(found).open("rb") as file:
            first, second, *_ = [*file.read(_HEAD_BYTES).decode(errors="replace").split("\n"), ""]
    except OSError:
        return ()
    if not first.startswith("#!"):
        return ()
    try:
        words = [long[1].strip('"')] if (long := _PIPS_SHEBANG.match(second)) else shlex.split(first[2:])
    except ValueError:
        return ()
    if words and Path(words[0]).name == "env":
        words = words[2:] if words[1:2] == ["-S"] else words[1:]
    is_python = words and _PYTHON_PATTERN.fullmatch(Path(words[0]).name) and shutil.which(words[0])
    return tuple(words) if is_python else ()


def _runs_as_it_is(script: Path) -> bool:
    """Whether a script for `uv run` has no environment of its own."""
    try:
        return _SCRIPT_METADATA not in script.read_bytes()
    except OSError:
        return False


def _installed_packages(script: Path) -> Mapping[str, Sequence[Path]] | None:
    """Where the packages that a console script imports may lie, by name; None: one of them lies nowhere there.

    Raises:
        OSError, SyntaxError, ValueError: the script cannot be read.
    """
    folders = list(_package_folders(script.absolute().parent.parent))
    if not folders:
        return {}  # no environment's script: what it imports may lie beside it
    tree = ast.parse(script.read_bytes(), str(script))
    names = {name.partition(".")[0] for name in _imported(tree)} - sys.stdlib_module_names
    found = {name: [folder for folder in folders if _holds(folder, name)] for name in names}
    return found if all(found.values()) else None


def _package_folders(prefix: Path) -> Iterator[Path]:
    """The folders of an environment's packages, and those that its .pth files add: projects installed to be edited."""
    for folder in prefix.glob("lib/python3*/*-packages"):
        yield folder
        for file in folder.glob("*.pth"):
            lines = file.read_text(errors="replace").splitlines()
            yield from (folder / line for line in lines if line and not line.startswith(("#", "import ", "import\t")))


def _holds(folder: Path, package: str) -> bool:
    return (folder / f"{package}.py").is_file() or (folder / package / "__init__.py").is_file()


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


def _sources_of(python: PythonCommand, script: Path, roots: Sequence[Path]) -> Iterator[tuple[Path, set[str]]] | None:
    """The sources of what a command runs, as `_sources` has them; None: they belong to a package that is not here.

    Args:
        python: the command.
        script: its script, or its module's file.
        roots: where modules are looked for.

    Raises:
        OSError, SyntaxError, ValueError: see `_installed_packages`.
    """
    installed = {} if python.module or script.suffix == ".py" else _installed_packages(script)
    if installed is None:
        return None
    return _sources(script, (script.parent, *(roots if python.module else ())), installed)


def _sources(
    script: Path, roots: Sequence[Path], installed: Mapping[str, Sequence[Path]]
) -> Iterator[tuple[Path, set[str]]]:
    """The sources of a script: its own, and those of modules beside it that it imports; and what each uses of edriver.

    Args:
        script: the script.
        roots: where modules are looked for,
        installed: and where those of a package, by its name.

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
        yield path, _of_edriver(tree)
        for name in _imported(tree):
            for folder in {path.parent, *roots, *installed.get(name.partition(".")[0], ())}:
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
        used |= members or (set() if used else {"edriver"})
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
