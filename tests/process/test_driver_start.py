"""The command `edriver` itself: how it starts, what it refuses, how it is stopped. Workers here are shell scripts."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pytest

SECONDS = 300


@dataclass(frozen=True)
class Command:
    """Runs `edriver` with a folder for temporary files of its own, so that one sees what is left in it."""

    temporary: Path

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "edriver", *arguments],
            env=os.environ | {"TMPDIR": str(self.temporary)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        with self.start(*arguments) as process:
            out, err = process.communicate(timeout=SECONDS)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def left(self) -> list[Path]:
        return list(self.temporary.iterdir())


@pytest.fixture
def edriver() -> Iterator[Command]:
    with tempfile.TemporaryDirectory(prefix="ed-", dir="/tmp") as folder:  # sockets want short paths
        yield Command(Path(folder))


def script(path: Path, text: str, mode: int = 0o755) -> str:
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_help_and_version(edriver: Command) -> None:
    shown = edriver.run("--help")
    assert shown.returncode == 0
    assert "--host-discovery-script SCRIPT" in shown.stdout
    assert "example:" in shown.stdout
    assert "--worker-lease S" in edriver.run("run", "--help").stdout
    assert edriver.run("--version").stdout.startswith("edriver ")


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        pytest.param(["-np", "two", "sh"], "-np/--num-proc: 'two' is neither a whole number nor auto", id="no-number"),
        pytest.param(["-np", "2", "--start-timeout", "nan", "sh"], "'nan' is not a number of seconds", id="no-seconds"),
        pytest.param(["--mpj", "-np", "2", "sh"], "--mpj is not a flag of edriver", id="unknown"),
        pytest.param(
            ["--mpi", "-np", "2", "sh"], "--mpi is a flag of horovodrun that edriver does not", id="horovodruns"
        ),
        pytest.param(
            ["--fusion-threshold-mb", "32", "-np", "2", "sh"],
            "--fusion-threshold-mb is a flag of horovodrun that edriver does not have",
            id="horovodruns-with-a-value",
        ),
        pytest.param(["-np", "2", "--min-n", "1", "sh"], "--min-n is not a flag of edriver", id="shortened"),
        pytest.param(["-np", "2", "no-such-program-here"], "there is no command 'no-such-program-here'", id="command"),
        pytest.param(["-np", "1"], "the command is missing", id="no-command"),
        pytest.param(
            ["-np", "1", "--records", "/proc/none", "sh"],
            "--records: /proc/none cannot be made: No such file or directory",
            id="no-records",
        ),
        pytest.param(["-np", "1", "--records", "d", "--no-records", "sh"], "exclude each other", id="both-records"),
    ],
)
def test_bad_flags_are_refused_in_one_line(edriver: Command, flags: list[str], sentence: str) -> None:
    refused = edriver.run(*flags)
    assert refused.returncode == 2
    assert refused.stdout == ""
    assert sentence in refused.stderr
    assert refused.stderr.startswith("edriver: ")
    assert refused.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "mode", "sentence"),
    [
        pytest.param(None, 0, "there is no such file", id="missing"),
        pytest.param("#!/bin/sh\necho localhost:1\n", 0o644, "is not executable: chmod +x", id="not-executable"),
        pytest.param("#!/no/sh\necho localhost:1\n", 0o755, "its interpreter does not exist", id="no-interpreter"),
    ],
)
def test_a_discovery_script_that_cannot_run_ends_the_start_at_once(
    edriver: Command, tmp_path: Path, text: str | None, mode: int, sentence: str
) -> None:
    path = tmp_path / "hosts.sh"
    if text is not None:
        script(path, text, mode)
    failed = edriver.run("-np", "1", "--start-timeout", "600", "--host-discovery-script", str(path), "sh")
    assert failed.returncode == 1
    first, records, *_, last, where, report = failed.stderr.splitlines()
    assert first.startswith("edriver: run ")
    assert "; elastic mode (the command does not name a Python script whose source could be read; " in first
    assert records.startswith("edriver: records: ")
    assert where == records
    assert report == f"edriver: for a report: edriver report {Path(records).name}"
    assert last.startswith(f"edriver: failed: host discovery script '{path}': ")
    assert sentence in last
    assert edriver.left() == []


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["-np", "1", "--no-records", "--hosts-dial-in"], id="a-run"),
        pytest.param(["rendezvous"], id="a-rendezvous"),
    ],
)
def test_a_port_that_is_taken_is_named_in_one_sentence(edriver: Command, tmp_path: Path, words: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        where = ["--folder", str(tmp_path)] if words == ["rendezvous"] else ["--credentials", str(tmp_path / "c"), "sh"]
        failed = edriver.run(*words, "--port", str(port), *where)
    assert failed.returncode == 1
    said = (failed.stderr + failed.stdout).splitlines()
    assert f"another process listens at port {port}: give another --port (0: any free port)" in said[-1]
    assert all(line.startswith("edriver") for line in said), said
    assert edriver.left() == []


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        pytest.param("#!/bin/sh\necho no quota >&2; exit 3\n", "exited with code 3", id="fails"),
        pytest.param("#!/bin/sh\necho localhost:zero\n", "line 1", id="bad-line"),
        pytest.param("#!/bin/sh\nsleep 1000\n", "did not exit within 2 s", id="hangs"),
    ],
)
def test_a_discovery_script_that_fails_for_the_whole_start_ends_it(
    edriver: Command, tmp_path: Path, text: str, sentence: str
) -> None:
    path = tmp_path / "hosts.sh"
    script(path, text)
    failed = edriver.run("-np", "1", "--start-timeout", "3", "--host-discovery-script", str(path), "sh")
    assert failed.returncode == 1
    first, records, *waits, last, where, report = failed.stderr.splitlines()
    assert first.startswith("edriver: run ")
    assert records.startswith("edriver: records: ")
    assert where == records
    assert report == f"edriver: for a report: edriver report {Path(records).name}"
    why = f"(discovery failed: host discovery script '{path}': "
    assert [why in line and sentence in line for line in waits] == [True], "it says once why it waits"
    assert last.startswith(
        "edriver: failed: found 0 usable slots within --start-timeout 3 s; the run needs 1 (--min-np, by default -np) "
        f"{why}"
    )
    assert sentence in last
    assert edriver.left() == []


def test_a_discovery_script_that_fails_at_first_is_asked_again(edriver: Command, tmp_path: Path) -> None:
    path = tmp_path / "hosts.sh"
    attempts = tmp_path / "attempts"
    answer = f"#!/bin/sh\necho x >> '{attempts}'\n[ $(wc -l < '{attempts}') -lt 3 ] && exit 1\necho localhost:1\n"
    script(path, answer)
    run = edriver.run("-np", "1", "--host-discovery-script", str(path), "sh", "-c", "echo it runs; exit 3")
    assert "[localhost:0]<stdout>:it runs\n" in run.stdout
    assert attempts.read_text().count("x") >= 3


def test_a_worker_that_fails_is_the_root_cause(edriver: Command) -> None:
    failed = edriver.run("-np", "1", "sh", "-c", "echo reading; echo 'no data here' >&2; exit 3")
    assert failed.returncode == 1
    assert "[localhost:0]<stdout>:reading\n" in failed.stdout
    assert "[localhost:0]<stderr>:no data here\n" in failed.stderr
    assert "edriver: worker 1 (localhost:0) exited with code 3\n" in failed.stderr
    report = failed.stderr[failed.stderr.index("edriver: failed:") :]
    assert report.startswith("edriver: failed: worker 1 (localhost:0) exited with code 3\n")
    assert "edriver:     no data here\n" in report
    assert edriver.left() == []


def test_a_command_that_never_calls_run_is_reported(edriver: Command) -> None:
    failed = edriver.run("-np", "1", "true")
    assert failed.returncode == 1
    assert "exited with code 0 before its edriver.run was done (does the script call edriver.run" in failed.stderr


def wait_for_workers(process: subprocess.Popen[str], count: int) -> list[int]:
    """The pids that so many workers have printed."""
    assert process.stdout is not None
    return [int(process.stdout.readline().rpartition(":")[2]) for _ in range(count)]


def gone(pid: int) -> bool:
    """Whether a process has ended; a zombie that its init has yet to reap counts."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return status.rpartition(")")[2].split()[0] in "ZX"


@pytest.mark.parametrize(
    ("number", "code"),
    [
        pytest.param(signal.SIGINT, 130, id="ctrl-c"),
        pytest.param(signal.SIGTERM, 143, id="sigterm"),
        pytest.param(signal.SIGHUP, 129, id="hangup"),
    ],
)
def test_a_signal_ends_the_run_in_good_order(edriver: Command, number: signal.Signals, code: int) -> None:
    command = "trap 'echo saved; exit' TERM; echo $$; while :; do sleep 0.05; done"
    with edriver.start("-np", "2", "sh", "-c", command) as process:
        workers = wait_for_workers(process, 2)
        process.send_signal(number)
        out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == code
    assert out.count("saved") == 2
    assert f"edriver: stopped: the driver received {number.name}\n" in err
    assert all(gone(pid) for pid in workers)
    assert edriver.left() == []


def test_the_second_ctrl_c_ends_it_at_once(edriver: Command) -> None:
    waits = "echo told; sleep 1; echo waits; sleep 3; echo was given time"
    command = f"trap '{waits}' TERM; echo $$; while :; do sleep 0.05; done"
    with edriver.start("-np", "1", "sh", "-c", command) as process:
        workers = wait_for_workers(process, 1)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)  # passed on by a wrapper that got it, too
        assert process.stdout is not None
        assert process.stdout.readline().endswith("told\n")
        assert process.stdout.readline().endswith("waits\n")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=SECONDS)
    assert process.returncode in (130, 143)  # after whichever was taken first
    assert "was given time" not in out
    assert "edriver: SIGINT again: ending at once\n" in err
    assert all(gone(pid) for pid in workers)
    assert edriver.left() == []


def test_ctrl_c_while_the_first_poll_hangs(edriver: Command, tmp_path: Path) -> None:
    polling = tmp_path / "polling"
    os.mkfifo(polling)
    hanging = script(tmp_path / "hosts.sh", f"#!/bin/sh\necho > '{polling}'\nexec sleep 1000\n")
    with edriver.start("-np", "1", "--host-discovery-script", hanging, "sh") as process:
        polling.read_text()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    assert edriver.left() == []


def test_a_reader_that_has_read_enough_does_not_end_the_run(edriver: Command) -> None:
    command = "echo $$; i=0; while [ $i -lt 2000 ]; do echo $i; i=$((i + 1)); done; echo end >&2; exit 3"
    with edriver.start("-np", "1", "sh", "-c", command) as process:
        wait_for_workers(process, 1)
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        err = process.stderr.read()
        assert process.wait(SECONDS) == 1
    assert "[localhost:0]<stderr>:end\n" in err
    assert "edriver: failed: worker 1 (localhost:0) exited with code 3\n" in err


@pytest.mark.parametrize(
    ("number", "loss"),
    [
        pytest.param(signal.SIGKILL, "its agent was killed by SIGKILL", id="killed"),
        pytest.param(signal.SIGSTOP, "its agent has not answered for 5 s", id="hangs"),
    ],
)
def test_an_agent_that_is_lost_is_replaced(edriver: Command, number: signal.Signals, loss: str) -> None:
    hosts = "localhost:1,127.0.0.2:1"
    with edriver.start("-np", "2", "-H", hosts, "sh", "-c", "echo $PPID; sleep 1000") as process:
        agents = wait_for_workers(process, 2)
        os.kill(agents[0], number)
        [another] = wait_for_workers(process, 1)
        assert another not in agents
        assert gone(agents[0])
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 143
    assert f" is lost: {loss}\n" in err
    assert all(gone(pid) for pid in (*agents, another))


def test_what_a_run_leaves_behind(edriver: Command, tmp_path: Path) -> None:
    failed = edriver.run("-np", "1", "--records", str(tmp_path), "sh", "-c", "exit 3")
    (folder,) = tmp_path.iterdir()
    assert failed.stderr.splitlines()[0].startswith(f"edriver: run {folder.name}: ")
    assert failed.stderr.count(f"edriver: records: {folder}\n") == 2
    reported = json.loads((folder / "run.json").read_bytes())
    assert (reported["run_id"], reported["command"], reported["np"]) == (folder.name, ["sh", "-c", "exit 3"], 1)
    lines = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    ended = lines[-1]["run_ended"]
    assert ended["end"] == "RUN_END_FAILED"
    assert [each["cause"]["code"] for each in ended["worker_failures"]] == [3]
    assert datetime.fromisoformat(lines[0]["time"]) >= datetime.fromisoformat(reported["start_time"])
    trace = json.loads((folder / "trace.json").read_bytes())
    assert "booting" in {entry["name"] for entry in trace if entry["ph"] == "B"}
    assert {path.stat().st_mode & 0o777 for path in (folder, *folder.iterdir())} == {0o700, 0o600}
    assert edriver.left() == []


def test_no_records(edriver: Command) -> None:
    assert "records" not in edriver.run("-np", "1", "--no-records", "sh", "-c", "exit 3").stderr


def test_a_default_folder_that_cannot_be_made_is_reported_once(
    edriver: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/none")
    failed = edriver.run("-np", "1", "sh", "-c", "exit 3")
    assert failed.returncode == 1
    assert failed.stderr.count("keeps no records: /proc/none") == 1
    assert failed.stderr.count("records:") == 1


def test_verbose_prints_events_and_actions(edriver: Command) -> None:
    shown = edriver.run("-np", "1", "--verbose", "sh", "-c", "exit 3")
    assert "edriver: event AgentConnected(host='localhost', agent_id=1, processors='" in shown.stderr
    assert "edriver: action StartWorker(worker_id=1, host='localhost', slot=0, background=False, " in shown.stderr
