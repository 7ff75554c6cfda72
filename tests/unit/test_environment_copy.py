"""Which Python environment a host copies, what is copied of it, and how workers are led into the copy."""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

from edriver.agent.workers.relocation import Relocation, environment_folder, lead_programs_into
from edriver.common.copied_environment import COPIED_FROM, moved, shared_interpreter
from edriver.driver.observe.environment_copies import EnvironmentCopies, lines_of
from edriver.system.folder_copy import CopyStoppedError, copy_folder
from edriver.v1 import agent_pb2
from edriver.wire.conversion import duration


def _program(path: Path, text: str = "#!/bin/sh\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """A virtual environment whose interpreter is a link to another one, with a console script."""
    base = _program(tmp_path / "base" / "bin" / "python3.11")
    made = tmp_path / "shared" / "venv"
    (made / "lib" / "python3.11" / "site-packages" / "own").mkdir(parents=True)
    (made / "pyvenv.cfg").write_text(f"home = {base.parent}\n")
    (made / "bin").mkdir()
    (made / "bin" / "python3").symlink_to(base)
    (made / "bin" / "python").symlink_to("python3")
    _program(made / "bin" / "tool", f"#!{made}/bin/python\nprint('{made}/bin')\n")
    return made


def _conda(folder: Path) -> Path:
    (folder / "conda-meta").mkdir(parents=True)
    _program(folder / "bin" / "python3.11")
    (folder / "bin" / "python").symlink_to("python3.11")
    return folder


def test_the_environment_is_that_of_the_commands_interpreter(venv: Path, tmp_path: Path) -> None:
    python, nothing = str(venv / "bin" / "python"), {"PATH": "/nowhere"}
    assert environment_folder([python, "train.py"], nothing) == venv
    assert environment_folder(["env", "A=1", "python", "train.py"], {"PATH": f"/nowhere:{venv}/bin"}) == venv
    assert environment_folder([str(venv / "bin" / "tool")], nothing) == venv
    long = _program(tmp_path / "long", f"#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n")
    assert environment_folder([str(long)], nothing) == venv
    assert environment_folder(["sh", "-c", "python train.py"], {"VIRTUAL_ENV": str(venv), **nothing}) == venv
    conda = _conda(tmp_path / "conda" / "envs" / "torch")
    assert environment_folder(["./train"], {"CONDA_PREFIX": str(conda), **nothing}) == conda
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "python").symlink_to(conda / "bin" / "python")
    assert environment_folder(["python", "train.py"], {"PATH": str(tmp_path / "links")}) == conda


def test_the_systems_python_is_not_copied() -> None:
    assert environment_folder(["train"], {"PATH": "/nowhere"}) is None
    if Path("/usr/bin/python3").exists():
        assert environment_folder(["/usr/bin/python3", "train.py"], {}) is None


def test_command_and_variables_lead_into_the_copy(venv: Path, tmp_path: Path) -> None:
    copy = tmp_path / "local" / "copy"
    copy.parent.mkdir()
    copy.mkdir()
    copy_folder(venv, copy, threading.Event())
    relocation = Relocation(venv, copy)
    words = ["nice", f"{venv}/bin/python", f"{venv}/train.py", f"--out={venv}/bin/python", f"{venv}/bin/tool", "x"]
    path = f"{tmp_path}:{venv}/bin::/usr/bin"
    assert relocation.command(words, path) == (
        *("nice", f"{copy}/bin/python", f"{venv}/train.py", f"--out={venv}/bin/python", f"{copy}/bin/tool", "x"),
    )
    assert relocation.command(["python", "train.py"], path) == ("python", "train.py")
    assert relocation.environment(
        {"PATH": path, "VIRTUAL_ENV": str(venv), "PYTHONPATH": "/a", "DATA": f"{venv}/lib"}
    ) == {
        "PATH": f"{tmp_path}:{copy}/bin::/usr/bin",
        "VIRTUAL_ENV": str(copy),
        "PYTHONPATH": "/a",
        "DATA": f"{venv}/lib",
        COPIED_FROM: str(venv),
    }


def test_a_folder_is_found_by_another_spelling_and_an_interpreter_by_a_link(tmp_path: Path) -> None:
    conda, copy = _conda(tmp_path / "conda"), tmp_path / "copy"
    _program(copy / "bin" / "python3.11")
    (tmp_path / "home").symlink_to(tmp_path)
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "python").symlink_to(conda / "bin" / "python")
    relocation = Relocation(conda, copy)
    assert relocation.environment({"PATH": f"{tmp_path}/home/conda/bin"})["PATH"] == f"{copy}/bin"
    assert relocation.command(["python", "x"], str(tmp_path / "links")) == (f"{copy}/bin/python3.11", "x")


def test_programs_name_the_copy_in_their_first_lines_alone(venv: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    long = f"#!/bin/sh\n'''exec' \"{venv}/bin/python\" \"$0\"\n' '''\n# {venv}/bin/python\n"
    _program(venv / "bin" / "long", long)
    copy_folder(venv, copy, threading.Event())
    lead_programs_into(venv, copy)
    assert (copy / "bin" / "tool").read_text() == f"#!{copy}/bin/python\nprint('{venv}/bin')\n"
    assert (copy / "bin" / "tool").stat().st_mode & 0o777 == 0o755
    assert (copy / "bin" / "long").read_text() == long.replace(str(venv), str(copy), 1)
    assert (venv / "bin" / "long").read_text() == long


def test_files_keep_their_times_and_links_their_ends(venv: Path, tmp_path: Path) -> None:
    module = venv / "lib" / "python3.11" / "site-packages" / "own" / "__init__.py"
    module.write_bytes(b"x" * 100_000)
    os.utime(module, ns=(1, 1_234_567_890_123_456_789))
    module.chmod(0o444)
    (module.parent / "absolute").symlink_to(module)
    (module.parent / "outside").symlink_to("../../../../../other")
    (module.parent / "loose").symlink_to("nothing")
    os.mkfifo(module.parent / "pipe")
    copy = tmp_path / "copy"
    copy.mkdir()
    copied = copy_folder(venv, copy, threading.Event())
    there = copy / module.parent.relative_to(venv)
    assert (there / "__init__.py").read_bytes() == module.read_bytes()
    assert (there / "__init__.py").stat().st_mtime_ns == 1_234_567_890_123_456_789
    assert (there / "__init__.py").stat().st_mode & 0o777 == 0o644
    assert (copy / "bin" / "python").readlink() == Path("python3")
    assert (copy / "bin" / "python3").readlink() == tmp_path / "base" / "bin" / "python3.11"
    assert (there / "absolute").readlink() == there / "__init__.py"
    assert (there / "outside").readlink() == tmp_path / "shared" / "other"
    assert (there / "loose").readlink() == Path("nothing")
    assert not (there / "pipe").exists()
    assert copied.files == 3
    assert copied.bytes == 100_000 + sum((venv / name).stat().st_size for name in ("pyvenv.cfg", "bin/tool"))


def test_what_has_no_room_or_is_stopped_is_not_copied(venv: Path, tmp_path: Path) -> None:
    stopped = threading.Event()
    copy = tmp_path / "copy"
    copy.mkdir()
    (venv / "large").write_bytes(b"x" * 2_000_000)
    with pytest.raises(OSError, match="it takes 2 MB, and 1 MB are free"):
        copy_folder(venv, copy, stopped, lambda _: 1_000_000)
    assert not (copy / "large").exists()

    def stop_now(_: Path) -> int:
        stopped.set()
        return 1 << 40

    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(CopyStoppedError):
        copy_folder(venv, other, stopped, stop_now)


def test_other_hosts_learn_the_interpreter_of_the_original() -> None:
    assert shared_interpreter({}, "/local/python/bin/python", "/local/python") == "/local/python/bin/python"
    copied = {COPIED_FROM: "/shared/venv"}
    assert shared_interpreter(copied, "/local/python/bin/python", "/local/python") == "/shared/venv/bin/python"
    assert shared_interpreter(copied, "/usr/bin/python", "/local/python") == "/usr/bin/python"
    assert shared_interpreter() == sys.executable


def test_many_hosts_are_said_in_one_line() -> None:
    copy = partial(agent_pb2.EnvironmentCopy, source="/shared/venv", folder="/tmp")
    news = {f"h{n}": copy(took=duration(n), bytes=5_000_000_000) for n in range(1, 11)}
    news["slow"] = copy()
    news["full"] = copy(trouble="no room")
    what = "the Python environment /shared/venv"
    assert lines_of(news) == [
        (
            logging.INFO,
            f"copied {what} (5,000 MB) to /tmp on 10 hosts (h1, h2, h3, h4, h5, h6, h7, h8, ...) in 1.0 to 10.0 s",
        ),
        (logging.INFO, f"copying {what} to /tmp on 1 host (slow): workers start there when done"),
        (
            logging.WARNING,
            f"{what} cannot be copied to /tmp on 1 host (full): no room; workers start from the original there",
        ),
    ]


def test_news_of_hosts_are_gathered() -> None:
    said: list[str] = []
    calls = []
    copies = EnvironmentCopies(lambda _, call: calls.append(call), lambda _, line: said.append(line))
    copies.take("a", agent_pb2.EnvironmentCopy(source="/v", folder="/tmp"))
    copies.take("b", agent_pb2.EnvironmentCopy(source="/v", folder="/tmp"))
    copies.take("a", agent_pb2.EnvironmentCopy(source="/v", folder="/tmp", took=duration(1.0)))
    assert (said, len(calls)) == ([], 1)
    calls[0]()
    assert [re.findall(r"1 host \((\w)\)", line) for line in said] == [["a"], ["b"]]


@pytest.mark.parametrize(
    ("path", "source", "copy", "found"),
    [
        ("/v/bin/python", "/v", "/tmp/c/python", "/tmp/c/python/bin/python"),
        ("/v2/bin/python", "/v", "/tmp/c/python", "/v2/bin/python"),
        ("/v/bin/python", "", "", "/v/bin/python"),
    ],
)
def test_a_path_is_that_of_the_copy_if_there_is_one(path: str, source: str, copy: str, found: str) -> None:
    assert moved(path, source, copy) == found
