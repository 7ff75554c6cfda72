"""Another account on the machine: what it can see of a run, reach of it, and lay in its way."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from edriver.driver.journal.journal import Head
from edriver.driver.journal.run_name import NAMES_FOLDER
from edriver.driver.journal.sqlite_journal import SqliteJournal
from edriver.system.record_folder import JOURNAL_FILE
from tests.attacks.attackers import OTHER_ACCOUNT, as_other_account
from tests.attacks.victim import SCRIPT, Victim, victim
from tests.needs import ROOT_USER, require
from tests.process.running import ROOT, Printing, running

SECRET = "swordfish-4711"  # of the user's own, in the environment


@pytest.fixture(scope="module")
def run() -> Iterator[Victim]:
    """A run with a TCP port, so that there are tokens and certificates."""
    require(ROOT_USER)
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
    require(ROOT_USER)
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


def lay_decoys(folder: str, count: int) -> None:
    """Make folders that look as if a run had left them."""
    from pathlib import Path

    for number in range(count):
        decoy = Path(folder, f"edriver-{number:08x}-{number:08x}")
        (decoy / "agent-1").mkdir(parents=True)
        decoy.chmod(0o777)
        for name in ("lock", "driver.sock", "agent-1/lock"):
            (decoy / name).touch()


LOOK = """
import sys
from pathlib import Path
from edriver.system.leftovers import remove_leftovers
from edriver.system.runs import living_runs

sys.addaudithook(lambda event, args: args and "/edriver-0" in str(args[0]) and print(event, args[0]))
print(remove_leftovers([Path(sys.argv[1])], {}), living_runs())
"""
"""Prints each system call on the decoys, as far as Python tells (https://docs.python.org/3/library/audit_events.html)."""


def test_folders_that_look_like_leftovers_are_not_looked_into(laid: tuple[Path, Path]) -> None:
    """It may lay as many as it likes, with whatever in them: each start of the user's would look through all of it."""
    temporary, _ = laid
    as_other_account(lay_decoys, str(temporary), 30)
    looked = subprocess.run(
        [sys.executable, "-c", LOOK, str(temporary)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert looked.stdout.startswith("[] {"), looked.stdout
    assert len(list(temporary.iterdir())) == 30


def lay(path: str, kind: str, target: str) -> None:
    """Make this a link to the target, a pipe, or a file that the other account can read."""
    import os
    from pathlib import Path

    if kind == "link":
        Path(path).symlink_to(target)
    elif kind == "pipe":
        os.mkfifo(path)
        Path(path).chmod(0o666)
    else:
        Path(path).touch()
        Path(path).chmod(0o666)


@pytest.mark.parametrize("kind", ["link", "pipe", "file"])
def test_an_event_log_is_not_written_to_what_it_has_laid_there(laid: tuple[Path, Path], kind: str) -> None:
    temporary, target = laid
    place = temporary / "events"
    as_other_account(lay, str(place), kind, str(target / "precious"))
    refused = edriver(temporary, "-np", "1", "--event-log", str(place), "true")
    assert refused.end() == 2
    words = {"link": "it is a symbolic link of", "file": "it belongs to", "pipe": "it is a pipe that no process reads"}
    # The kernel may have refused it before (fs.protected_symlinks, and others of sysctl).
    expected = f"--event-log '{place}' cannot be written: ({words[kind]}|Permission denied)"
    assert re.search(expected, refused.text), refused.text
    assert (target / "precious").read_text() == ""


RUN_ID = "5d2f01aa"


@pytest.fixture
def records() -> Iterator[Path]:
    """A folder for records, with a journal of a run named nightly whose command makes the file `taken`."""
    with tempfile.TemporaryDirectory(prefix="ed-", dir="/tmp") as name:  # sockets want short paths
        folder = Path(name, "records")
        (folder / RUN_ID).mkdir(parents=True, mode=0o700)
        (folder / NAMES_FOLDER).mkdir(mode=0o700)
        (folder / NAMES_FOLDER / "nightly").write_text(f"{RUN_ID}\n")
        command = ("-np", "1", "sh", "-c", f"touch {name}/taken")
        head = Head(RUN_ID, command, name, dict(os.environ), b"k" * 32, f"{name}/edriver-{RUN_ID}-00000000")
        SqliteJournal.create(folder / RUN_ID / JOURNAL_FILE, head).close()
        yield folder


def give_away(*places: Path) -> None:
    """Have them belong to the other account, as if it had made them."""
    require(ROOT_USER)
    for place in places:
        for path in (place, *place.rglob("*")):
            os.chown(path, OTHER_ACCOUNT, OTHER_ACCOUNT)


def open_to_its_group(place: Path) -> None:
    place.chmod(place.stat().st_mode | stat.S_IWGRP)


def edriver(records: Path, *words: str) -> Printing:
    return Printing(
        [sys.executable, "-m", "edriver", *words],
        records.parent,
        {"PYTHONPATH": str(ROOT), "TMPDIR": str(records.parent), "XDG_STATE_HOME": str(records.parent / "state")},
    )


NAMED = ("--run", "nightly", "--records", "records", "-np", "1", "true")


def test_a_journal_of_this_users_own_is_obeyed(records: Path) -> None:
    resumed = edriver(records, "resume", str(records / RUN_ID))
    resumed.end()
    assert (records.parent / "taken").exists(), resumed.text


@pytest.mark.parametrize(
    ("words", "foreign", "named"),
    [
        pytest.param(("resume", f"records/{RUN_ID}"), RUN_ID, RUN_ID, id="resume"),
        pytest.param(("resume", f"records/{RUN_ID}"), f"{RUN_ID}/{JOURNAL_FILE}", JOURNAL_FILE, id="journal-alone"),
        pytest.param(NAMED, RUN_ID, RUN_ID, id="run"),
        pytest.param(("--supervise", *NAMED), RUN_ID, RUN_ID, id="supervise"),
        pytest.param(NAMED, NAMES_FOLDER, NAMES_FOLDER, id="folder-of-names"),
        pytest.param(NAMED, f"{NAMES_FOLDER}/nightly", f"{NAMES_FOLDER}/nightly", id="name"),
    ],
)
def test_a_journal_of_another_account_is_refused(
    records: Path, words: tuple[str, ...], foreign: str, named: str
) -> None:
    give_away(records / foreign)
    refused = edriver(records, *words)
    assert refused.end() in (1, 2)
    assert re.search(rf"{named} belongs to user ID {OTHER_ACCOUNT}, ", refused.text), refused.text
    assert "Traceback" not in refused.text
    assert not (records.parent / "taken").exists()


@pytest.mark.parametrize(
    ("words", "place"),
    [
        pytest.param(("resume", f"records/{RUN_ID}"), RUN_ID, id="folder"),
        pytest.param(("resume", f"records/{RUN_ID}"), f"{RUN_ID}/{JOURNAL_FILE}", id="journal"),
        pytest.param(NAMED, NAMES_FOLDER, id="folder-of-names"),
    ],
)
def test_a_journal_that_others_can_write_is_refused(records: Path, words: tuple[str, ...], place: str) -> None:
    open_to_its_group(records / place)
    refused = edriver(records, *words)
    assert refused.end() in (1, 2)
    assert re.search(rf"{place} can be changed by its group .*: chmod -R go-w ", refused.text), refused.text
    assert not (records.parent / "taken").exists()


def test_a_copy_of_what_was_refused_is_obeyed(records: Path) -> None:
    give_away(records / RUN_ID)
    shutil.copytree(records / RUN_ID, records / "copy", copy_function=shutil.copyfile)
    (records / "copy").chmod(0o700)
    resumed = edriver(records, "resume", "records/copy")
    resumed.end()
    assert (records.parent / "taken").exists(), resumed.text


@pytest.mark.parametrize("what", ["link", "folder"])
def test_a_resumed_run_does_not_use_a_folder_that_was_laid_in_the_place_of_its_own(records: Path, what: str) -> None:
    own = records.parent / f"edriver-{RUN_ID}-00000000"
    (records.parent / "precious").mkdir()
    (records.parent / "precious" / "driver.sock").touch()
    if what == "link":
        own.symlink_to(records.parent / "precious")
    else:
        own.mkdir()
        give_away(own)
    refused = edriver(records, "resume", f"records/{RUN_ID}")
    assert refused.end() == 1
    assert re.search(rf"failed: the run's folder cannot be used: {own} (is a symbolic link|belongs to )", refused.text)
    assert "Traceback" not in refused.text
    assert (records.parent / "precious" / "driver.sock").exists()
    assert not (records.parent / "taken").exists()
    assert (records / RUN_ID / JOURNAL_FILE).exists()


@pytest.mark.parametrize("foreign", ["", "server.pem", "credentials.json", "journal.sqlite3", "journal.sqlite3-wal"])
def test_a_rendezvous_does_not_serve_with_the_keys_of_another_account(tmp_path: Path, foreign: str) -> None:
    place = tmp_path / "rendezvous"
    place.mkdir()
    (place / foreign).touch()
    give_away(place / foreign)
    refused = Printing(
        [sys.executable, "-m", "edriver", "rendezvous", "--folder", str(place), "--port", "0"],
        tmp_path,
        {"PYTHONPATH": str(ROOT)},
    )
    assert refused.end() == 1
    assert re.search(rf"{place / foreign} belongs to user ID {OTHER_ACCOUNT}, ", refused.text), refused.text
