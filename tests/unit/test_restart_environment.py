"""What a script in restart mode finds: torchrun's variables, and modules that were imported before."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
import torch

import edriver
from edriver.agent.settings import AgentSettings
from edriver.agent.worker_settings import WorkerSettings
from edriver.driver.core.selection import plan_round
from edriver.model.ids import NO_VERSION, RoundId
from edriver.model.plan import Assignment, Candidate
from edriver.model.store_address import StoreAddress
from edriver.v1.notification_pb2 import ModulesImported
from edriver.worker import context
from edriver.worker.restart import standby
from edriver.worker.restart.environment import torchrun_environment
from edriver.worker.restart.script import own_traceback, run_script
from edriver.worker.rounds.run import rounds_of
from edriver.worker.watch.imports import ImportRecord, StartEnvironment

PLACE = Assignment(
    round_id=RoundId(1, 4),
    rank=3,
    size=6,
    local_rank=1,
    local_size=2,
    cross_rank=1,
    cross_size=3,
    store=StoreAddress("10.0.0.1", 4711),
    sources=(0,),
    receivers=(),
    host_rank=1,
    host_count=3,
    failures=2,
)


def test_the_variables_are_those_of_torchrun() -> None:
    given = {"EDRIVER_RUN_ID": "ab12", "EDRIVER_MAX_RESTARTS": "5", "EDRIVER_ERROR_FILE": "/tmp/error"}
    assert torchrun_environment(PLACE, given) == {
        "RANK": "3",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "6",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "3",
        "ROLE_RANK": "3",
        "ROLE_WORLD_SIZE": "6",
        "ROLE_NAME": "default",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "4711",
        "TORCHELASTIC_RUN_ID": "ab12",
        "TORCHELASTIC_RESTART_COUNT": "2",
        "TORCHELASTIC_MAX_RESTARTS": "5",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_ERROR_FILE": "/tmp/error",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    }


def test_what_the_user_has_set_stays_and_no_limit_is_a_number() -> None:
    given = {"EDRIVER_RUN_ID": "a", "EDRIVER_ERROR_FILE": "e", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}
    found = torchrun_environment(PLACE, given)
    assert found["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "3"
    assert int(found["TORCHELASTIC_MAX_RESTARTS"]) > 10**6


def test_hosts_are_counted_whatever_their_sizes() -> None:
    hosts = ["a", "a", "b", "c", "c"]
    candidates = [Candidate(n, host, n, NO_VERSION, StoreAddress(host, n)) for n, host in enumerate(hosts, 1)]
    plan = plan_round(RoundId(1, 1), 1, candidates, first=True, failures=7)
    assert [(seat.host_rank, seat.host_count) for seat in plan.seats] == [(0, 3), (0, 3), (1, 3), (2, 3), (2, 3)]
    assert plan.failures == 7


def test_discoverys_order_goes_before_age_where_it_counts() -> None:
    late_on_a = Candidate(9, "a", 0, NO_VERSION, StoreAddress("a", 1), place=(0, 0))
    early_on_b = Candidate(3, "b", 0, NO_VERSION, StoreAddress("b", 1), place=(1, 0))
    plan = plan_round(RoundId(1, 2), 1, [early_on_b, late_on_a], first=True)
    assert plan.workers == (9, 3)


def test_a_standby_imports_what_is_installed_and_nothing_of_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "users_own.py").write_text("import os\nRANK = os.environ['RANK']\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("RANK", "3")
    __import__("users_own")
    __import__("colorsys")
    record = tmp_path / "imports"
    ImportRecord(record, {"RANK": "3"}).update()
    names = json.loads(record.read_text())["modules"]
    assert "colorsys" in names
    assert not {"users_own", "__main__"} & set(names)
    monkeypatch.delitem(sys.modules, "users_own")


def test_a_standby_imports_in_its_predecessors_place_and_forgets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "reads_its_rank.py").write_text("import os\nRANK = os.environ['RANK']\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("RANK", raising=False)
    record = tmp_path / "imports"
    record.write_text(json.dumps({"modules": ["no_such", "reads_its_rank"], "environment": {"RANK": "3"}}))
    standby.preload(record)
    assert sys.modules["reads_its_rank"].RANK == "3"
    assert "RANK" not in os.environ
    monkeypatch.delitem(sys.modules, "reads_its_rank")


def test_a_standby_imports_with_the_variables_that_the_script_has_set_and_a_library_keeps_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "site-packages"
    installed.mkdir()
    (installed / "chooses_a_backend.py").write_text(
        "import os\nBACKEND = os.environ.get('MY_BACKEND', 'slow')\nos.environ['MY_THREADS'] = '1'\n"
    )
    monkeypatch.syspath_prepend(str(installed))
    monkeypatch.delenv("MY_BACKEND", raising=False)
    monkeypatch.delenv("MY_THREADS", raising=False)
    reported = dict[str, str]()
    record = ImportRecord(tmp_path / "imports", {"RANK": "3"}, lambda _, environment: reported.update(environment))
    with monkeypatch.context() as script:
        script.setenv("MY_BACKEND", "fast")
        script.setenv("MY_THREADS", "")  # so that it is as before in the end
        __import__("chooses_a_backend")
        record.update()
    monkeypatch.delitem(sys.modules, "chooses_a_backend")
    expected = {"RANK": "3", "MY_BACKEND": "fast", "MY_THREADS": "1"}
    assert json.loads((tmp_path / "imports").read_text())["environment"] == reported == expected

    (tmp_path / "imports").write_text(json.dumps({"modules": ["chooses_a_backend"], "environment": expected}))
    standby.preload(tmp_path / "imports")
    assert sys.modules["chooses_a_backend"].BACKEND == "fast"
    assert "MY_BACKEND" not in os.environ, "the script sets it"
    assert os.environ.pop("MY_THREADS") == "1", "nobody else sets it"
    monkeypatch.delitem(sys.modules, "chooses_a_backend")


def test_what_the_script_has_set_before_it_imported_edriver_is_known_from_the_start_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SET_EARLY", "1")
    record = tmp_path / "imports"
    assert "SET_EARLY" not in StartEnvironment().variables
    ImportRecord(record, {}, before=StartEnvironment().variables).update()
    assert json.loads(record.read_text())["environment"]["SET_EARLY"] == "1"


def test_the_first_worker_of_a_slot_imports_what_another_slots_did_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    for slot, written in ((0, 200), (1, 100)):
        (tmp_path / f"of_slot_{slot}.py").write_text("")
        record = tmp_path / f"imports.{slot}"
        record.write_text(json.dumps({"modules": [f"of_slot_{slot}"], "environment": {}}))
        os.utime(record, (written, written))
    standby.preload(tmp_path / "imports.2")
    assert "of_slot_0" in sys.modules
    assert "of_slot_1" not in sys.modules
    monkeypatch.delitem(sys.modules, "of_slot_0")


def test_the_first_worker_of_a_host_imports_what_those_of_other_hosts_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "of_another_host.py").write_text("import os\nRANK = os.environ['RANK']\n")
    (tmp_path / "of_this_host.py").write_text("")
    settings = WorkerSettings(AgentSettings(run_id="r", host="h", agent_id=1, address="127.0.0.1", folder=tmp_path), {})
    settings.keep_imports(ModulesImported(names=["of_another_host"], environment={"RANK": "3"}))
    standby.preload(tmp_path / "imports.2")
    assert sys.modules["of_another_host"].RANK == "3"
    monkeypatch.delitem(sys.modules, "of_another_host")
    (tmp_path / "imports.2").write_text(json.dumps({"modules": ["of_this_host"], "environment": {}}))
    standby.preload(tmp_path / "imports.2")
    assert "of_another_host" not in sys.modules
    monkeypatch.delitem(sys.modules, "of_this_host")


def test_each_installed_module_is_reported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path / "site-packages"))
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "site-packages").mkdir()
    for name in ("site-packages/installed_first", "site-packages/installed_later", "users_own"):
        (tmp_path / f"{name}.py").write_text("")
    reported: list[list[str]] = []
    record = ImportRecord(tmp_path / "imports", {}, lambda names, _: reported.append([*names]))
    __import__("installed_first")
    record.update()
    record.update()
    __import__("users_own")
    record.update()
    __import__("installed_later")
    monkeypatch.setitem(sys.modules, "no name", sys.modules["installed_later"])
    record.update()
    first, later = reported
    assert "installed_first" in first
    assert later == ["installed_later"]
    for name in ("installed_first", "installed_later", "users_own"):
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(None, id="no-file"),
        pytest.param("", id="empty"),
        pytest.param("[]", id="a-list"),
        pytest.param("{", id="torn"),
        pytest.param('{"modules": 3, "environment": {"RANK": "3"}}', id="no-modules"),
        pytest.param('{"modules": ["this"], "environment": 3}', id="no-environment"),
    ],
)
def test_a_record_that_cannot_be_read_is_left_alone(tmp_path: Path, text: str | None) -> None:
    record = tmp_path / "imports"
    if text is not None:
        record.write_text(text)
    environment, imported = dict(os.environ), set(sys.modules)
    standby.preload(record)
    assert (dict(os.environ), set(sys.modules)) == (environment, imported)
    assert (record.read_text() if record.exists() else None) == text


def test_a_call_of_run_in_restart_mode_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDRIVER_WORKER_ID", "1")
    monkeypatch.setenv("EDRIVER_MODE", "restart")
    with pytest.raises(RuntimeError, match="give --mode elastic"):
        rounds_of(context.current)


def test_no_checkpoint_is_requested_outside_of_restart_mode() -> None:
    assert edriver.checkpoint_requested() is False


@pytest.mark.parametrize("source", ["raise ValueError(3)", "import sys; sys.exit(3)"])
def test_a_traceback_begins_with_the_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    (tmp_path / "train.py").write_text(source)
    monkeypatch.setattr(sys, "argv", ["runner"])
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ValueError, SystemExit)) as raised:
        run_script(["train.py", "--lr", "3"])
    assert sys.argv == ["train.py", "--lr", "3"]
    assert sys.path[0] == str(tmp_path)
    frames = traceback.extract_tb(own_traceback(raised.tb.tb_next))
    assert [frame.filename for frame in frames] == ["train.py"]


def test_a_module_is_run_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pkg_of_this_test").mkdir()
    (tmp_path / "pkg_of_this_test" / "__main__.py").write_text("import sys; print(__name__, sys.argv[1:])")
    monkeypatch.setattr(sys, "argv", ["runner"])
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    monkeypatch.chdir(tmp_path)
    run_script(["-m", "pkg_of_this_test", "1"])
    assert capsys.readouterr().out == "__main__ ['1']\n"


SAVES = """
import os, signal, sys, torch
from edriver.worker.restart import whole_saves
whole_saves.end_after_save()

class Slow:
    def __reduce__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        print("still here", flush=True)
        return dict, ()

if "handled" in sys.argv:
    signal.signal(signal.SIGTERM, lambda *_: print("told", flush=True))
try:
    torch.save(Slow(), "whole.pt")
finally:
    print("went on", flush=True)
"""


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [([], -signal.SIGTERM, "still here\n"), (["handled"], 0, "told\nstill here\nwent on\n")],
    ids=["by-default", "handled-by-the-script"],
)
def test_a_checkpoint_is_written_to_its_end_before_sigterm_ends_the_process(
    tmp_path: Path, words: list[str], code: int, said: str
) -> None:
    environ = {**os.environ, "PYTHONPATH": str(Path(edriver.__file__).parents[1])}
    command = [sys.executable, "-c", SAVES, *words]
    ended = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=300)
    assert (ended.returncode, ended.stdout) == (code, said), ended.stderr
    assert torch.load(tmp_path / "whole.pt", weights_only=False) == {}


BEGINS = """
import io, torch
from edriver.worker.restart import fresh_start, whole_saves
whole_saves.end_after_save()
fresh_start.watch({number}, {rank})
file = io.BytesIO()
{first}
for _ in range(2):
    torch.save([], file)
"""


@pytest.mark.parametrize(
    ("number", "rank", "first", "warned"),
    [
        pytest.param(3, 0, "", 1, id="third-round"),
        pytest.param(2, 0, "", 0, id="second-round"),
        pytest.param(3, 1, "", 0, id="another-rank"),
        pytest.param(3, 0, "torch.load('old.pt')", 0, id="loaded"),
    ],
)
def test_a_script_that_finds_no_checkpoint_in_each_round_is_told_of_the_runs_id(
    tmp_path: Path, number: int, rank: int, first: str, warned: int
) -> None:
    torch.save([], tmp_path / "old.pt")
    source = BEGINS.format(number=number, rank=rank, first=first)
    environ = {**os.environ, "PYTHONPATH": str(Path(edriver.__file__).parents[1])}
    ended = subprocess.run(
        [sys.executable, "-c", source], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count('os.environ["TORCHELASTIC_RUN_ID"]') == warned


SPAWNS = """
import multiprocessing
def work(): print("worked", flush=True)
def train():
    child = multiprocessing.get_context("{method}").Process(target=work)
    child.start()
    child.join()
{top}
"""

RUNS_SCRIPT = (
    "from edriver.worker.restart import script, spawned; spawned.refuse_unguarded(); script.run_script(['t.py'])"
)


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
@pytest.mark.parametrize(
    ("top", "guarded"),
    [
        pytest.param("train()", False, id="top-level"),
        pytest.param("if __name__ == '__main__':\n    train()", True, id="guarded"),
        pytest.param("if __name__ != '__mp_main__':\n    train()", True, id="other-guard"),
    ],
)
def test_a_script_that_every_spawned_process_would_run_again_is_told_of(
    tmp_path: Path, method: str, top: str, guarded: bool
) -> None:
    (tmp_path / "t.py").write_text(SPAWNS.format(method=method, top=top))
    environ = {**os.environ, "PYTHONPATH": str(Path(edriver.__file__).parents[1])}
    ended = subprocess.run(
        [sys.executable, "-c", RUNS_SCRIPT], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=300
    )
    if guarded or method == "fork":
        assert (ended.returncode, ended.stdout) == (0, "worked\n"), ended.stderr
    else:
        assert ended.returncode == 1
        assert re.search(r"RuntimeError: .*would run .*t.py again.*if __name__ == \"__main__\"", ended.stderr)


QUICK = """
import atexit, sys
from edriver.worker.restart.quick_end import QuickEnd
end = QuickEnd()
atexit.register(print, "hook")
end.code = {code}
class Late:
    def __del__(self): print("taken down")
kept = Late()
"""


@pytest.mark.parametrize(
    ("code", "exit_code", "said"), [(7, 7, "hook\n"), (None, 0, "hook\ntaken down\n")], ids=["failed", "well"]
)
def test_a_failed_process_runs_its_exit_hooks_and_nothing_else(code: int | None, exit_code: int, said: str) -> None:
    ended = subprocess.run([sys.executable, "-c", QUICK.format(code=code)], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (exit_code, said)
