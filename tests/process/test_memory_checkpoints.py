"""Checkpoints in memory under a real driver: a sharded script that loses ranks, hosts, servers and the driver."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from pathlib import Path

import pytest

from edriver.system.proc_stat import PROC_ROOT
from tests.process.resuming import Resumed, kill
from tests.process.running import SCRIPTS, Hosts, Printing, Run, running
from tests.waiting import until

pytestmark = pytest.mark.long  # eight processes that import all that FSDP needs

EVERY = 5
"""Steps between two saves."""

FOUR = ("-np", "4", "-H", "localhost:2,127.0.0.2:2")
TRAIN = [sys.executable, "sharded.py", "checkpoints"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """The digests of the state of four ranks, by step, in a run in which nothing happens."""
    folder = _folder(tmp_path_factory.mktemp("undisturbed"))
    with running([*FOUR, *TRAIN], folder, _environ(folder, STEPS="200", PAUSE="0")) as run:
        assert run.end() == 0, run.text
        return _digests(run)


def _folder(path: Path) -> Path:
    shutil.copy(SCRIPTS / "sharded.py", path)
    return path


def _environ(folder: Path, **more: str) -> dict[str, str]:
    state = {"XDG_STATE_HOME": str(folder / "state")}
    return {"STEPS": "1000000", "EVERY": str(EVERY), "PAUSE": "0.05", **state, **more}


def _digests(run: Printing) -> dict[int, str]:
    """What rank 0 has said of the state, by step: what it says twice of a step must be the same."""
    found: dict[int, str] = {}
    for step, digest in re.findall(r"the state of step (\d+) is (\w+)", run.text):
        assert found.setdefault(int(step), digest) == digest, run.text
    return found


class Restart:
    """What a run prints when it starts again from memory.

    Attributes:
        made: the last step made before,
        began: and the one from which it goes on.
    """

    def __init__(self, run: Printing, size: int, after: int) -> None:
        said = run.line(r"round \S+: .*, to load the checkpoint in memory of step ([\d,]+)", after)
        begins = [run.line(rf"rank {rank} of {size} pid \d+ begins at step (\d+)$", after) for rank in range(size)]
        self.began = int(said[1].replace(",", ""))  # 1160 is printed as 1,160
        assert {int(each[1]) for each in begins} == {self.began}, run.text
        self.made = _last_step(run.lines[: run.lines.index(said.string)])
        run.line(f"the state of step {self.began // 10 * 10 + 10} is", run.lines.index(said.string))


def _last_step(lines: list[str]) -> int:
    return max(int(step) for step in re.findall(r"rank 0 made step (\d+)$", "\n".join(lines), re.MULTILINE))


def _goes_on(run: Printing, steps: int) -> None:
    """Wait until so many more steps are made."""
    at = len(run.lines)
    run.line(f"rank 0 made step {_last_step(run.lines) + steps}$", at)


def _parent(pid: int) -> int:
    return int((PROC_ROOT / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])


def _wait_until_they_wait(pids: list[int]) -> None:
    """Wait until the training threads of these ranks, which never pause, sleep from one look to the next: each has come
    to where it waits for another rank.
    """
    looks: list[list[str]] = [[]]

    def stand() -> bool:
        texts = [(PROC_ROOT / str(pid) / "status").read_text() for pid in pids]
        looks.append([line for text in texts for line in re.findall(r"State.*|\w*ctxt_switches.*", text)])
        return looks[-1] == looks[-2] and sum("sleeping" in line for line in looks[-1]) == len(pids)

    until(stand, lambda: looks[-1])


def _servers(run: Run) -> dict[int, int]:
    """The pids of the checkpoint servers, by those of their agents."""
    found = [int(text.partition(":")[0]) for text in run.left_behind() if "edriver.checkpoint_server" in text]
    return {_parent(pid): pid for pid in found}


def test_a_killed_rank_loses_no_more_than_the_steps_since_the_last_save(
    tmp_path: Path, undisturbed: dict[int, str]
) -> None:
    with running([*FOUR, *TRAIN], _folder(tmp_path), _environ(tmp_path)) as run:
        run.line("rank 0 made step 22$")
        at = len(run.lines)
        os.kill(run.pids()[1], signal.SIGKILL)
        restart = Restart(run, 4, at)
        assert 20 <= restart.began <= restart.made <= restart.began + EVERY
        assert _digests(run).items() <= undisturbed.items()
        assert not [*(tmp_path / "checkpoints").glob("checkpoint-*")], "nothing is on disk"


def test_a_rank_that_stands_still_for_a_while_is_waited_for(tmp_path: Path, undisturbed: dict[int, str]) -> None:
    """In whatever part of a save it is: what the others have saved meanwhile counts with its part, or not at all."""
    with running([*FOUR, *TRAIN], _folder(tmp_path), _environ(tmp_path, EVERY="1", PAUSE="0")) as run:
        run.line("rank 0 made step 20$")
        for rank in (0, 1, 2, 3, 2, 1):
            os.kill(run.pids()[rank], signal.SIGSTOP)
            _wait_until_they_wait([pid for other, pid in run.pids().items() if other != rank])
            os.kill(run.pids()[rank], signal.SIGCONT)
            _goes_on(run, 20)
        at = len(run.lines)
        os.kill(run.pids()[3], signal.SIGKILL)
        restart = Restart(run, 4, at)
        assert restart.began >= restart.made - 1
        assert _digests(run).items() <= undisturbed.items()
        assert "not kept in memory" not in run.text


def test_a_lost_server_is_replaced_and_a_lost_host_has_copies_elsewhere(
    tmp_path: Path, undisturbed: dict[int, str]
) -> None:
    """The copies on the host that stays were made by the server that has taken the place of the one that was killed."""
    hosts = Hosts(tmp_path, "localhost:2", "127.0.0.2:2")
    flags = ["-np", "4", "--min-np", "2", "--host-discovery-script", str(hosts.script)]
    flags += ["--blacklist-cooldown-range", "3600", "3600"]
    with running([*flags, *TRAIN], _folder(tmp_path), _environ(tmp_path)) as run:
        run.line("rank 0 made step 12$")
        pids, servers = run.pids(), _servers(run)
        stays, lost = _parent(pids[0]), _parent(pids[3])
        os.kill(servers[stays], signal.SIGKILL)
        run.line("the checkpoint server has ended: the checkpoints in this host's memory are lost")
        until(lambda: _servers(run).get(stays) not in (None, servers[stays]))
        _goes_on(run, 25)
        assert len(run.text.split("round 1.1")) == 2, "the same round"
        at = len(run.lines)
        os.kill(lost, signal.SIGKILL)
        shrunk = Restart(run, 2, at)
        assert shrunk.began <= shrunk.made <= shrunk.began + 2 * EVERY, "a copy may be one save behind"
        at = len(run.lines)
        hosts.are("localhost:2", "127.0.0.3:2")
        grown = Restart(run, 4, at)
        assert grown.began == grown.made, "a planned change costs no step"


def test_hosts_come_and_go_without_a_lost_step(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path, "localhost:2")
    flags = ["-np", "2", "--min-np", "1", "--max-np", "3", "--host-discovery-script", str(hosts.script)]
    with running([*flags, *TRAIN], _folder(tmp_path), _environ(tmp_path, EVERY="1000000")) as run:
        run.line("rank 0 made step 12$")
        at = len(run.lines)
        hosts.are("localhost:2", "127.0.0.2:1")
        grown = Restart(run, 3, at)
        assert grown.began == grown.made
        at = len(run.lines)
        hosts.are("127.0.0.2:1")
        shrunk = Restart(run, 1, at)
        assert shrunk.began == shrunk.made


def test_the_next_driver_knows_what_is_in_memory(tmp_path: Path, undisturbed: dict[int, str]) -> None:
    with running([*FOUR, *TRAIN], _folder(tmp_path), _environ(tmp_path)) as run:
        run.line("rank 0 made step 12$")
        kill(run)
        resumed = Resumed(run, tmp_path)
        resumed.line("another driver has taken over, number 2 of this run")
        resumed.line("rank 0 made step")
        at = len(resumed.lines)
        os.kill(run.pids()[2], signal.SIGKILL)
        restart = Restart(resumed, 4, at)
        assert 10 <= restart.began <= restart.made <= restart.began + EVERY
        assert _digests(resumed).items() <= undisturbed.items()
        resumed.process.send_signal(signal.SIGINT)
        assert resumed.end() == 130, resumed.text
        assert run.gone(), run.left_behind()


THREE = ("-np", "3", "-H", "localhost:2,127.0.0.2:1")


def test_a_step_that_not_all_have_saved_is_never_loaded(tmp_path: Path) -> None:
    environ = _environ(tmp_path, ODD="1")
    with running([*THREE, *TRAIN], _folder(tmp_path), environ) as run:
        run.line("rank 0 made step 48$")
        at = len(run.lines)
        os.kill(run.pids()[2], signal.SIGKILL)
        assert Restart(run, 3, at).began == 35


def test_training_goes_on_where_checkpoints_do_not_fit_into_memory(tmp_path: Path) -> None:
    with running([*THREE, "--checkpoint-memory", "8K", *TRAIN], _folder(tmp_path), _environ(tmp_path)) as run:
        run.line("rank 0 made step 22$")
        for rank in range(3):
            said = [line for line in run.lines if line.startswith(f"[{rank}]<stderr>") and "not kept in memory" in line]
            assert len(said) == 1, run.text
            assert re.search(
                r"the checkpoint of step 5 is not kept in memory: this rank's part takes \S+ KiB, and checkpoints may "
                r"use 8\.0 KiB of this host's memory \(--checkpoint-memory\)",
                said[0],
            )


def test_a_key_that_a_script_has_got_between_restarts_is_named(tmp_path: Path) -> None:
    with running([*THREE, "--reset-limit", "1", *TRAIN], _folder(tmp_path), _environ(tmp_path)) as run:
        run.line("rank 0 made step 12$")
        script = tmp_path / "sharded.py"
        script.write_text(script.read_text().replace('state = {"model"', 'state = {"epoch": torch.zeros(3), "model"'))
        os.kill(run.pids()[2], signal.SIGKILL)
        assert run.end() == 1, run.text
        said = "it has no epoch, which the state has. Give load a state of the structure that was saved"
        assert f"edriver.CheckpointError: the checkpoint does not fit the state: {said}" in run.text
