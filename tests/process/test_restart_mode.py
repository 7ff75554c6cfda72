"""Restart mode under a real driver: a script that torchrun could run, unchanged."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import sys
import textwrap
import urllib.request
from pathlib import Path

import pytest

from tests.process.running import BOUND, NO_STANDBYS, QUICK_WORKERS, SCRIPTS, Hosts, edriver, running
from tests.waiting import until

PLAIN = [sys.executable, "plain.py"]
FOREVER = {"STEPS": "1000000", **QUICK_WORKERS}


def _folder(path: Path) -> Path:
    for name in ("plain.py", "saves.py"):
        shutil.copy(SCRIPTS / name, path)
    return path


def test_a_kill_restarts_all_from_the_scripts_checkpoint_in_processes_that_waited(tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    with running(["-np", "2", *PLAIN, "--lr", "3"], _folder(tmp_path), FOREVER) as run:
        run.line(r"restart mode \(plain.py .*\): .* from the checkpoint that the script loads or from its beginning$")
        run.line("rank 0 of 2 pid .* at step 0")
        run.line("rank 1 of 2 pid .* at step 0")
        trained = set(run.pids().values())
        while len(waiting := set(_workers(run.left_behind())) - trained) < 2:
            run.line("rank 0 passed step", after=len(run.lines))
        run.line("rank 0 passed step 5$")
        os.kill(run.pids()[1], signal.SIGKILL)
        run.line(r"round 1.1 ended: worker 2 \(rank 1, localhost:1\) was killed by SIGKILL")
        again = run.line(r"rank 0 of 2 pid \d+ at step (\d+) after 1 failures")
        assert int(again[1]) >= 5
        run.line("rank 1 of 2 pid .* after 1 failures")
        assert set(run.pids().values()) == waiting
        stop.touch()
        assert run.end() == 0, run.text
        assert re.search(r"rank 1 is done with plain.py --lr 3", run.text)
        assert run.lines[-3].startswith("edriver: done: 2 rounds")
        assert "Traceback" not in run.text
        assert run.gone()


def test_a_script_without_an_interpreter_is_run_by_this_python(tmp_path: Path) -> None:
    flags = ["-np", "2", *NO_STANDBYS]
    with running([*flags, "plain.py", "--lr", "3"], _folder(tmp_path), {"STEPS": "3", **QUICK_WORKERS}) as run:
        run.line(rf"edriver: run \w+: 2 workers of {re.escape(sys.executable)} plain.py --lr 3; restart mode")
        run.line(r"rank 1 is done with plain.py --lr 3")
        assert run.end() == 0, run.text


def _workers(processes: list[str]) -> list[int]:
    return [int(text.partition(":")[0]) for text in processes if "edriver.worker.restart plain.py" in text]


def test_all_are_restarted_at_each_size(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path, "localhost:1")
    flags = ["-np", "1", "--max-np", "3", "--host-discovery-script", str(hosts.script)]
    with running([*flags, "env", "A=1", *PLAIN], _folder(tmp_path), FOREVER) as run:
        run.line("rank 0 of 1 pid .* at step 0")
        run.line("rank 0 passed step 5$")
        hosts.are("localhost:1", "127.0.0.2:2")
        run.line("round 1.1 ended: [12] workers? joined on 127.0.0.2, 0 left")  # the other is waited for
        grown = run.line(r"rank 0 of 3 pid \d+ at step (\d+) after 0 failures")
        assert int(grown[1]) >= 5
        run.line("rank 2 passed step")
        hosts.are("127.0.0.2:2")
        shrunk = run.line(r"rank 0 of 2 pid \d+ at step (\d+) after 0 failures", after=run.lines.index(grown.string))
        assert int(shrunk[1]) > int(grown[1])
        assert "failed" not in run.text


IN_PAIRS = """
import os, pathlib, time

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
assert size % 2 == 0, f"{size} workers are no pairs"
assert int(os.environ["LOCAL_RANK"]) == rank % 2, "the two of a pair are on one host"
print("rank", rank, "of", size, "pid", os.getpid(), flush=True)
while not pathlib.Path("stop").exists():
    time.sleep(0.1)
"""


def test_a_run_in_replicas_has_whole_ones_at_each_start(tmp_path: Path) -> None:
    (tmp_path / "pairs.py").write_text(IN_PAIRS)
    hosts = Hosts(tmp_path, "localhost:2", "127.0.0.2:2", "127.0.0.3:3")
    flags = ["-np", "6", "--min-np", "2", "--replica-size", "2", "--blacklist-cooldown-range", "3", "3"]
    flags += ["--host-discovery-script", str(hosts.script), "--mode", "restart"]
    with running([*flags, sys.executable, "pairs.py"], tmp_path, QUICK_WORKERS) as run:
        run.line(r"edriver: run \w+: 6 workers \(at least 2, as many as there are\), in replicas of 2, of .*pairs.py")
        run.line("rank 5 of 6 pid")
        status = edriver("status", "--run", run.id)
        assert "6 workers, 3 replicas of 2" in status.stdout, status
        assert "host 127.0.0.3 (3 slots) is used in 2 slots; has 1 slot idle: not enough for a replica" in status.stdout
        refused = edriver("resize", "5", "--run", run.id)
        assert "ask for 4 or 6" in refused.stderr, refused
        killed = run.pids()[2]
        at = len(run.lines)
        os.kill(killed, signal.SIGKILL)
        run.line("rank 5 of 6 pid", after=at)
        (tmp_path / "stop").touch()
        assert run.end() == 0, run.text
        sizes = [int(size) for size in re.findall(r"rank 0 of (\d+) pid", run.text)]
        assert sizes in ([6, 4, 6], [6, 6]), (
            sizes
        )  # two without the pair, if the others end before its slot is used again
        assert "Traceback" not in run.text


IMPORTS_SLOWLY = """
import os, signal, sys, time
import slow_module

def stopped(*_):
    slow_module.note("stopped")
    sys.exit(0)

signal.signal(signal.SIGTERM, stopped)
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], "pid", os.getpid(), flush=True)
time.sleep(3600)
"""

SLOW_MODULE = """
import os
def note(what):
    with open(os.environ["ORDER"], "a") as file:
        print(what, os.getpid(), "in the place of rank", os.environ["RANK"], file=file)
note("imported")
"""


@pytest.mark.long
def test_a_worker_on_a_new_host_imports_what_the_others_have_before_they_are_stopped(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path, "localhost:2")
    flags = ["-np", "2", "--max-np", "3", "--host-discovery-script", str(hosts.script)]
    installed, order = tmp_path / "site-packages", tmp_path / "order"
    installed.mkdir()
    (installed / "slow_module.py").write_text(SLOW_MODULE)
    (tmp_path / "train.py").write_text(IMPORTS_SLOWLY)
    order.touch()
    environ = {"ORDER": str(order), "PYTHONPATH": f"{installed}{os.pathsep}{QUICK_WORKERS['PYTHONPATH']}"}
    with running([*flags, sys.executable, "train.py"], tmp_path, environ) as run:
        run.line("rank 0 of 2")
        run.line("rank 1 of 2")
        # A standby imports it only after its slot's worker has reported it.
        until(lambda: len(order.read_text().splitlines()) == 4)
        hosts.are("localhost:2", "127.0.0.2:1")
        run.line("round 1.1 ended: 1 worker joined on 127.0.0.2, 0 left")
        run.line("rank 2 of 3")
        events = order.read_text().splitlines()
        imported = next(n for n, event in enumerate(events) if event.startswith(f"imported {run.pids()[2]} "))
        assert imported < min(n for n, event in enumerate(events) if event.startswith("stopped")), events
        assert events[imported].endswith("in the place of rank 1"), "the last of the round before"


@pytest.mark.long
def test_no_place_counts_work_that_may_have_been_thrown_away_as_good(tmp_path: Path) -> None:
    """Nothing is saved before the kill: all of the first round is done again."""
    state = {"XDG_STATE_HOME": str(tmp_path / "state")}
    flags = ["-np", "3", "-H", "localhost:2,127.0.0.2:1", "--metrics-port", "0"]
    with running([*flags, *PLAIN], _folder(tmp_path), {**FOREVER, **state, "EVERY": "1000000"}) as run:
        url = run.line(r"metrics for Prometheus: (\S+)")[1]
        run.line("rank 2 passed step 5$")
        os.kill(run.pids()[2], signal.SIGKILL)
        ended = run.line(r"round 1.1 ended: .* 127.0.0.2:0\) was killed by SIGKILL")
        run.line("rank 0 of 3 pid .* at step 0 after 1 failures", after=run.lines.index(ended.string))
        run.line("rank 2 passed step 5$", after=run.lines.index(ended.string))
        status = edriver("status", "--run", run.id, environ=state).stdout
        assert re.search(r"^goodput not known: unknown \S+ m?s, recovering .*booting", status, re.MULTILINE), status
        assert "; number of lost steps not known\n" in status
        assert "step 0" not in status
        with urllib.request.urlopen(url, timeout=BOUND) as answer:
            shown = answer.read().decode()
        assert re.search(r'^edriver_time_seconds_total\{kind="unknown"\} [1-9]', shown, re.MULTILINE), shown
        assert 'edriver_time_seconds_total{kind="training"} 0.0' in shown
        assert not re.search("^edriver_(goodput|step)", shown, re.MULTILINE)
        (tmp_path / "stop").touch()
        assert run.end() == 0, run.text
        assert run.lines[-3].startswith("edriver: done: 2 rounds, 1 failure survived, ")
        assert "goodput" not in run.text
        report = edriver("report", run.id, "--output", str(tmp_path / "report.html"), environ=state).stdout
        assert re.search(r"^goodput +not known: edriver sees no steps in restart mode$", report, re.MULTILINE)
        assert re.search(r"time spent +unknown", report)
        assert "made again" not in report
        assert "reached" not in report
        (row,) = (line for line in edriver("runs", environ=state).stdout.splitlines() if line.startswith(run.id))
        assert re.search(r"  3 +-  +-  +'?/.*python", row), row


@pytest.mark.long_except("call")
@pytest.mark.parametrize(
    ("script", "how"),
    [pytest.param("saves.py", {}, id="call"), pytest.param("plain.py", {"SIGUSR1": "1"}, id="signal")],
)
def test_a_script_may_save_before_it_is_resized(tmp_path: Path, script: str, how: dict[str, str]) -> None:
    hosts = Hosts(tmp_path, "localhost:2")
    flags = ["-np", "2", "--min-np", "1", "--host-discovery-script", str(hosts.script)]
    environ = {**FOREVER, "EVERY": "1000000", **how}
    with running([*flags, sys.executable, script], _folder(tmp_path), environ) as run:
        run.line(r"restart mode")
        run.line("rank 1 passed step 5$")
        hosts.are("localhost:1")
        saved = run.line(r"rank 0 saves at step (\d+)")
        run.line("round 1.1 ended: 0 workers joined, 1 left")
        again = run.line(r"rank 0 of 1 pid \d+ at step (\d+)")
        assert again[1] == saved[1]
        if script == "saves.py":
            assert f"rank 1 saves at step {saved[1]}" in run.text
        assert "Traceback" not in run.text


def test_a_script_that_ends_on_sigterm_is_not_waited_for(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path, "localhost:2")
    flags = ["-np", "2", "--min-np", "1", "--host-discovery-script", str(hosts.script)]
    script = """
        import atexit, os, signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        atexit.register(print, "rank", os.environ["RANK"], "has ended", flush=True)
        print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], "pid", os.getpid(), flush=True)
        time.sleep(3600)
    """
    (tmp_path / "saves.py").write_text(textwrap.dedent(script))
    with running([*flags, sys.executable, "saves.py"], tmp_path, QUICK_WORKERS) as run:
        run.line("rank 1 of 2")
        run.line("rank 0 of 2")
        hosts.are("localhost:1")
        run.line("round 1.1 ended: 0 workers joined, 1 left")
        run.line("rank 0 of 1")
        assert {"[0]<stdout>:rank 0 has ended", "[1]<stdout>:rank 1 has ended"} < {*run.lines}, "or SIGKILL ends them"


@pytest.mark.parametrize(
    ("how", "said"),
    [
        pytest.param({}, "ValueError: the script's own fault", id="exception"),
        pytest.param({"EXIT": "1"}, "SystemExit: 3", id="exit"),
    ],
)
def test_an_error_is_the_runs_answer(tmp_path: Path, how: dict[str, str], said: str) -> None:
    flags = ["-np", "2", "--max-restarts", "0", *NO_STANDBYS, *PLAIN]
    with running(flags, _folder(tmp_path), {"FAIL": "3", **how, **QUICK_WORKERS}) as run:
        assert run.end() == 1
        report = run.text[run.text.index("edriver: failed: worker 2 (rank 1") :]
        assert "1 round ended by a failure, more than --reset-limit 0" in report
        assert said in report
        assert "edriver/worker/restart" not in report
        assert "[rank0]" not in run.text  # torch puts the rank of the one that failed before its traceback


@pytest.mark.long
def test_a_script_that_hangs_at_its_end_is_named_restarted_once_and_given_up(tmp_path: Path) -> None:
    script = 'print("rank", os.environ["RANK"], flush=True)\nos.environ["RANK"] == "0" or time.sleep(3600)'
    (tmp_path / "hangs.py").write_text(f"import os, time\n{script}")
    with running(["-np", "2", "--stall-timeout", "step=2", sys.executable, "hangs.py"], tmp_path, QUICK_WORKERS) as run:
        hang = (
            r"a script hangs: worker \d \(rank 0, localhost:0\) is done; worker \d \(rank 1, localhost:1\) is idle, "
            "without output or use of a processor"
        )
        run.line(f"round 1.1 ended: {hang}$")
        assert run.end() == 1, run.text
        run.line(rf"failed: {hang}; the same happened in the round before \(does the script end on all ranks\?\)$")
        assert run.text.count("rank 1") >= 2
        assert run.gone()


def test_a_program_that_is_no_python_pays_for_no_first_step(tmp_path: Path) -> None:
    command = ["-np", "1", *NO_STANDBYS, "--no-python", "true"]
    with running(command, tmp_path, {"PYTHONPROFILEIMPORTTIME": "1"}) as run:
        assert run.end() == 0, run.text
    assert "edriver.worker.restart.program" in run.text
    assert "torch._dynamo" not in run.text, "it takes a second"


@pytest.mark.long
def test_a_program_that_is_no_python_starts_a_script_and_is_restarted_with_the_others(tmp_path: Path) -> None:
    """Its ranks meet in the round's store, which the workers' own processes serve."""
    stop = tmp_path / "stop"
    (_folder(tmp_path) / "train.sh").write_text(f"#!/bin/sh\necho begins\n{shlex.quote(sys.executable)} plain.py $1\n")
    (tmp_path / "train.sh").chmod(0o755)
    with running(["-np", "3", "--no-python", "./train.sh", "--lr"], tmp_path, FOREVER) as run:
        run.line(r"restart mode \(--no-python\)")
        run.line("rank 2 of 3 pid .* at step 0")
        run.line("rank 0 passed step 5$")
        os.kill(run.pids()[1], signal.SIGKILL)
        run.line(r"round 1.1 ended: worker 2 \(rank 1, localhost:1\) exited with code 137")
        again = run.line(r"rank 0 of 3 pid \d+ at step (\d+) after 1 failures")
        assert int(again[1]) >= 5
        run.line("rank 2 of 3 pid .* after 1 failures")
        stop.touch()
        assert run.end() == 0, run.text
        assert "rank 2 is done with plain.py --lr" in run.text
        assert run.gone()


@pytest.mark.parametrize(
    ("program", "said"),
    [
        pytest.param("exit 3", r"\(rank 1, localhost:1\) exited with code 3", id="code"),
        pytest.param("kill -SEGV $$", r"\(rank 1, localhost:1\) was killed by SIGSEGV", id="signal"),
    ],
)
def test_a_program_that_fails_is_the_runs_answer(tmp_path: Path, program: str, said: str) -> None:
    flags = ["-np", "3", "--reset-limit", "0", "--mode", "restart", *NO_STANDBYS]
    command = ["sh", "-c", f'echo "the last words of $RANK"; [ $RANK != 1 ] || {program}; exec sleep 3600']
    with running([*flags, *command], tmp_path, QUICK_WORKERS) as run:
        assert run.end() == 1, run.text
        assert re.search(f"failed: worker . {said}", run.text)
        assert "the last words of 1" in run.text
        assert run.gone()


@pytest.mark.long
def test_a_program_that_handles_sigterm_has_its_time(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path, "localhost:2")
    flags = ["-np", "2", "--min-np", "1", "--host-discovery-script", str(hosts.script), "--no-python"]
    command = """
        saves() { kill $!; echo rank $RANK was told; read go <go.$RANK; echo rank $RANK has saved; exit 0; }
        trap saves TERM; echo rank $RANK of $WORLD_SIZE; sleep 3600 & wait
    """
    for rank in range(2):
        os.mkfifo(tmp_path / f"go.{rank}")
    with running([*flags, "bash", "-c", command], tmp_path, QUICK_WORKERS) as run:
        run.line("rank 0 of 2")
        run.line("rank 1 of 2")
        hosts.are("localhost:1")
        for rank in range(2):
            run.line(f"rank {rank} was told")
        for rank in range(2):
            with open(os.open(tmp_path / f"go.{rank}", os.O_RDWR), "w") as go:  # noqa: PTH123  waits for no reader
                go.write("go\n")
                go.flush()
                run.line(f"rank {rank} has saved")
        run.line("rank 0 of 1")


def test_a_program_that_does_not_exist_there_is_named(tmp_path: Path) -> None:
    program = tmp_path / "train.sh"
    program.write_text("#!/no/such/sh\n")
    program.chmod(0o755)
    flags = ["-np", "1", "--reset-limit", "0", *NO_STANDBYS]
    with running([*flags, "--no-python", str(program)], tmp_path, QUICK_WORKERS) as run:
        assert run.end() == 1, run.text
        assert "its first line is '#!/no/such/sh'" in run.text
        assert "exited with code 127" in run.text


def test_a_module_is_run_as_torchruns_flag_has_it(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").touch()
    (tmp_path / "pkg" / "train.py").write_text("import os, sys\nprint('rank', os.environ['RANK'], sys.argv[1:])\n")
    with running(["-np", "2", *NO_STANDBYS, "-m", "pkg.train", "--lr", "3"], tmp_path, QUICK_WORKERS) as run:
        run.line(r"restart mode \(pkg.train does not call edriver.run\)")
        assert run.end() == 0, run.text
        assert "rank 1 ['--lr', '3']" in run.text
