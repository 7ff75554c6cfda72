"""`-np auto`, `host:gpu` and torchrun's --nproc-per-node: slots from the devices that are there, here and over ssh.

CUDA_VISIBLE_DEVICES pretends them: it is the user's choice of GPUs, and is taken for true.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.process.running import NO_STANDBYS, QUICK_WORKERS, SCRIPTS, Hosts, running

PROGRAM = ["sh", "-c", 'echo "rank $RANK of $WORLD_SIZE, local $LOCAL_RANK of $LOCAL_WORLD_SIZE"']
PRINT_PLACE = [*NO_STANDBYS, "--no-python", *PROGRAM]
TRAIN = [sys.executable, str(SCRIPTS / "train.py")]

SSH = """#!/bin/sh
while [ "$1" != -- ]; do shift; done
case $2 in
    big) CUDA_VISIBLE_DEVICES=0,1,2 ;;
    small) CUDA_VISIBLE_DEVICES=GPU-7f ;;
    bare) CUDA_VISIBLE_DEVICES= ;;
    shrinks) CUDA_VISIBLE_DEVICES=$(cat "$ASKED.gpus") ;;
    *) echo "ssh: connect to host $2 port 22: Connection refused" >&2; exit 255 ;;
esac
export CUDA_VISIBLE_DEVICES
echo "$2" >>"$ASKED"
case $3 in *edriver.agent.devices*) echo "Welcome to $2" ;; esac
unset EDRIVER_RUN_FOLDER
exec setsid --wait sh -c "$3"
"""
"""Stands in for OpenSSH: other hosts are processes of this machine, each with the GPUs that it has. They outlive it."""


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Three GPUs here, and an ssh that knows hosts called big, small and bare."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "ssh").write_text(SSH)
    (folder / "ssh").chmod(0o755)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    return {**QUICK_WORKERS, "CUDA_VISIBLE_DEVICES": "2,5,7", "PATH": path, "ASKED": str(tmp_path / "asked")}


def places(text: str) -> list[tuple[int, ...]]:
    """Of each worker, by rank: rank, size, local rank, local size."""
    found = re.findall(r"rank (\d+) of (\d+), local (\d+) of (\d+)", text)
    return sorted(tuple(map(int, each)) for each in found)


@pytest.mark.parametrize(
    "flags",
    [  # the long ones differ from the others in how they are read alone: test_options.py and test_all_slots.py
        pytest.param(["-np", "auto"], id="np-auto", marks=pytest.mark.long),
        pytest.param(["--nproc-per-node", "gpu"], id="torchruns-flag", marks=pytest.mark.long),
        pytest.param(["--nproc_per_node=auto"], id="with-underscores"),
        pytest.param(["-np", "3", "-H", "localhost:gpu"], id="slots-of-a-host"),
        pytest.param(["-np", "auto", "-H", "127.0.0.1:auto"], id="all-slots-of-hosts", marks=pytest.mark.long),
        pytest.param(["-np", "auto", "--max-np", "8"], id="below-the-maximum"),
    ],
)
def test_a_worker_for_each_gpu_of_this_machine(flags: list[str], tmp_path: Path, environ: dict[str, str]) -> None:
    with running([*flags, *PRINT_PLACE], tmp_path, environ) as run:
        assert run.end() == 0, run.text
        assert places(run.text) == [(rank, 3, rank, 3) for rank in range(3)]
        assert run.gone()


def test_a_variable_of_torchrun_counts_and_others_are_named(tmp_path: Path, environ: dict[str, str]) -> None:
    kubeflow = {"PET_NPROC_PER_NODE": "gpu", "PET_NNODES": "2", "PET_RDZV_ENDPOINT": "a:29400", "PET_NO_PYTHON": "1"}
    with running([*NO_STANDBYS, *PROGRAM], tmp_path, {**environ, **kubeflow}) as run:
        assert run.end() == 0, run.text
        assert len(places(run.text)) == 3
        assert "edriver: PET_NNODES, PET_RDZV_ENDPOINT: set for torchrun, and ignored here" in run.text


def test_the_maximum_limits_the_workers_and_cores_count_where_there_is_no_gpu(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    environ["CUDA_VISIBLE_DEVICES"] = ""
    with running(["-np", "auto", "--max-np", "1", *PRINT_PLACE], tmp_path, environ) as run:
        assert run.end() == 0, run.text
        assert places(run.text) == [(0, 1, 0, 1)]


def test_each_host_is_asked_over_ssh(tmp_path: Path, environ: dict[str, str]) -> None:
    with running(["-np", "auto", "-H", "big:gpu,small:gpu", *PRINT_PLACE], tmp_path, environ) as run:
        run.line(r"run \w+: 4 workers of")
        assert run.end() == 0, run.text
        assert [place[3] for place in places(run.text)] == [3, 3, 3, 1]
        assert run.gone()


@pytest.mark.long
def test_hosts_of_a_script_are_counted_as_they_come(tmp_path: Path, environ: dict[str, str]) -> None:
    hosts = Hosts(tmp_path, "small:gpu", "bare:gpu", "nowhere:gpu")
    flags = ["-np", "1", "--host-discovery-script", str(hosts.script)]
    with running([*flags, *TRAIN], tmp_path, {**environ, "EPOCHS": "20000"}) as run:
        run.line("rank 0 of 1 .* at step")
        run.line("host bare is not used: it has no NVIDIA GPUs that workers may use")
        run.line("host nowhere is not used: no sshd listens there")
        asked = [sys.executable, "-m", "edriver", "status", "--run", run.id, "--json"]
        status = json.loads(subprocess.run(asked, capture_output=True, check=True, timeout=60).stdout)
        assert any("host bare is not used" in json.dumps(each) for each in status["warnings"])
        hosts.are("small:gpu", "big:gpu")
        run.line("rank 3 of 4 .* at step")
        assert (tmp_path / "asked").read_text().split().count("small") == 2, "once for its GPUs, once for its agent"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        pytest.param(["-np", "1", "-H", "bare:gpu,big:gpu"], "host bare is not used: it has no NVIDIA GPU", id="none"),
        pytest.param(["-np", "4", "-H", "localhost:gpu"], "localhost:3: the run needs 4 slots", id="too-few"),
        pytest.param(["-np", "auto", "-H", "nowhere:auto,big:gpu"], "host nowhere is not used: no sshd", id="no-sshd"),
        pytest.param(["--nproc-per-node", "xpu"], "'xpu' is neither a whole number nor one of gpu, cpu", id="xpu"),
        pytest.param(
            ["-np", "auto", "--hosts-dial-in", "--credentials", "c"],
            "the number of slots of these hosts is",
            id="dial-in",
        ),
    ],
)
def test_hosts_that_cannot_be_counted_are_named_and_the_run_does_not_start(
    flags: list[str], message: str, tmp_path: Path, environ: dict[str, str]
) -> None:
    with running([*flags, *PRINT_PLACE], tmp_path, environ) as run:
        assert run.end() in (1, 2), run.text
        assert message in run.text
        assert places(run.text) == []


def test_a_driver_that_takes_the_run_over_starts_from_what_was_counted(tmp_path: Path, environ: dict[str, str]) -> None:
    """Also where a GPU has failed by then: its worker goes on, and another one is no news."""
    (tmp_path / "asked.gpus").write_text("0,1,2")
    environ |= {"EPOCHS": "20000", "XDG_STATE_HOME": str(tmp_path / "state")}
    flags = ["-np", "auto", "-H", "shrinks:gpu", "--run", "again"]
    with running([*flags, *TRAIN], tmp_path, environ) as run:
        for rank in range(3):
            run.line(f"rank {rank} of 3 pid .* at step")
        run.process.send_signal(signal.SIGKILL)
        run.process.wait()
        (tmp_path / "asked.gpus").write_text("0")
        with running([*flags, *TRAIN], tmp_path, environ) as again:
            again.line(r"run \w+: resumed by driver 2")
            os.kill(run.pids()[1], signal.SIGKILL)
            again.line(r"rank 2 of 3 pid .* at step [1-9]")
            assert "started with other arguments" not in again.text
            again.process.send_signal(signal.SIGINT)
            assert again.end() == 130, again.text
        assert run.gone()
        assert again.gone()
