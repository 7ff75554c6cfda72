"""Another account on the machine: what it can see of a run, reach of it, and lay in its way."""

from __future__ import annotations

import base64
import json
import re
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.attacks.attackers import OTHER_ACCOUNT, as_other_account, need_root
from tests.attacks.victim import SCRIPT, Victim, victim
from tests.process.running import ROOT, running

SECRET = "swordfish-4711"  # of the user's own, in the environment


@pytest.fixture(scope="module")
def run() -> Iterator[Victim]:
    """A run with a TCP port, so that there are tokens and certificates."""
    need_root()
    flags = ["--status-credentials", "status.json", "--control-credentials", "control.json"]
    with victim(*flags, environ={"MY_SECRET": SECRET}) as found:
        found.trains()
        yield found
        found.is_unharmed()


def secrets_of(run: Victim) -> list[str]:
    """What only the run's user may know."""
    reported = [json.loads((run.folder / name).read_bytes()) for name in ("status.json", "control.json")]
    return [SECRET, *(each["token"] for each in reported)]


def reach(places: list[str]) -> dict[str, list[str]]:
    """Try to look at, read, write, enter, connect to and replace each of these; what could be done, by place."""
    import os
    import socket
    from collections.abc import Callable
    from pathlib import Path

    def connect(place: Path) -> None:
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect(str(place))

    tries: dict[str, Callable[[Path], object]] = {
        "list": lambda place: list(place.iterdir()),
        "read": lambda place: place.read_bytes(),
        "write": lambda place: place.open("ab").close(),
        "enter": os.chdir,
        "connect": connect,
        "make": lambda place: (place / "x").mkdir(),
        "rename": lambda place: place.rename(f"{place}x"),
        "remove": lambda place: place.unlink(),
        "chmod": lambda place: place.chmod(0o777),
    }
    done: dict[str, list[str]] = {}
    for place in places:
        for name, act in tries.items():
            try:
                act(Path(place))
            except OSError:
                continue
            done.setdefault(place, []).append(name)
    return done


def test_it_reaches_no_socket_and_no_folder_of_the_run(run: Victim) -> None:
    places = [run.own_folder, *run.own_folder.rglob("*")]
    assert {path.name for path in places} >= {"driver.sock"}
    assert any(stat.S_ISSOCK(path.lstat().st_mode) and path.name != "driver.sock" for path in places)
    assert stat.S_IMODE(run.own_folder.stat().st_mode) == 0o700
    assert as_other_account(reach, [str(place) for place in places]) == {}
    run.goes_on()


def test_it_reaches_no_file_that_holds_a_token_and_no_record(run: Victim) -> None:
    records = run.folder / "state"
    files = [run.folder / "status.json", run.folder / "control.json", *records.rglob("*")]
    assert {path.name for path in files} >= {"run.json", "events.jsonl"}
    found = as_other_account(reach, [str(path) for path in files])
    assert found == {}
    run.goes_on()


def read_processes(pids: list[int]) -> dict[str, str]:
    """What can be read of processes, in base64, by file; and what can be done to them."""
    import base64
    import os
    from pathlib import Path

    found = {}
    for pid in pids:
        for name in ("environ", "cmdline", "maps", "mem", "auxv", "io", "stack", "syscall", "fd", "cwd", "root", "exe"):
            path = Path(f"/proc/{pid}/{name}")
            try:
                if name == "fd":
                    data = " ".join(entry.name for entry in path.iterdir()).encode()
                elif name in ("cwd", "root", "exe"):
                    data = str(path.readlink()).encode()
                else:
                    with path.open("rb") as file:
                        data = file.read(1 << 20)
            except OSError:
                continue
            found[f"{pid} {name}"] = base64.b64encode(data).decode()
        for number in (0, 10, 18, 19, 9):
            try:
                os.kill(pid, number)
            except OSError:
                continue
            found[f"{pid} kill"] = ""
    return found


def test_it_reads_no_secret_of_a_process(run: Victim) -> None:
    found = as_other_account(read_processes, run.processes())
    # What a process was started with can be read by all; nothing else. The kernel's own answers hold no memory.
    assert {name.split()[1] for name in found} <= {"cmdline"}
    everything = b"".join(base64.b64decode(data) for data in found.values())
    assert b"edriver" in everything
    assert [secret for secret in secrets_of(run) if secret.encode() in everything] == []
    run.goes_on()


def plant(folder: str, target: str, names: list[str]) -> None:
    """Lay symbolic links of these names in a folder in which every account may make files."""
    from pathlib import Path

    for name in names:
        Path(folder, name).symlink_to(target)


def take(place: str) -> None:
    """Make a folder into which every account may write."""
    from pathlib import Path

    Path(place).mkdir()
    Path(place).chmod(0o777)


@pytest.fixture
def laid() -> Iterator[tuple[Path, Path]]:
    """A folder for temporary files, and one with a file of the user's to which the other account would lead a run."""
    need_root()
    with tempfile.TemporaryDirectory(prefix="ed-", dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        for place in ("t", "target"):
            (folder / place).mkdir()
            (folder / place).chmod(0o1777)
        (folder / "target" / "precious").touch()
        yield folder / "t", folder / "target"
        assert [path.name for path in (folder / "target").iterdir()] == ["precious"]


def test_links_in_tmp_lead_no_run_astray(laid: tuple[Path, Path]) -> None:
    temporary, target = laid
    names = [f"edriver-{number:08x}-{number:08x}" for number in range(1000)]
    as_other_account(plant, str(temporary), str(target), names)
    with victim(environ={"TMPDIR": str(temporary)}) as run:
        run.trains()
        run.is_unharmed()


FORESEEN = "import secrets\nsecrets.token_hex = lambda count: '0' * 2 * count\n"
"""For a driver whose random names the attacker knows beforehand."""


@pytest.mark.parametrize("what", ["link", "folder"])
def test_a_name_that_was_foreseen_and_taken_is_refused_and_not_followed(
    laid: tuple[Path, Path], tmp_path: Path, what: str
) -> None:
    temporary, target = laid
    taken = temporary / "edriver-00000000-00000000"
    if what == "link":
        as_other_account(plant, str(temporary), str(target), [taken.name])
    else:
        as_other_account(take, str(taken))
    (tmp_path / "sitecustomize.py").write_text(FORESEEN)
    environ = {"TMPDIR": str(temporary), "XDG_STATE_HOME": str(tmp_path / "state"), "VICTIM": str(tmp_path)}
    with running(["-np", "1", *SCRIPT], tmp_path, {**environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}) as run:
        assert run.end() == 1
        assert "Traceback" not in run.text
        assert re.search(rf"failed: .*{taken}.*File exists", run.text)
        assert run.gone(), run.left_behind()
    assert taken.is_symlink() == (what == "link")
    assert taken.lstat().st_uid == OTHER_ACCOUNT
