"""Scripts for Horovod under a real driver: with one line changed they survive kills and resizes."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pytest

from tests.process.running import NO_STANDBYS, QUICK_WORKERS, ROOT, SCRIPTS, Hosts, running

BENCHMARK = [sys.executable, str(SCRIPTS / "horovod_benchmark.py")]
PLAIN = [sys.executable, str(SCRIPTS / "horovod_plain.py")]
TRAIN = [sys.executable, str(SCRIPTS / "train.py")]
MNIST = [sys.executable, str(SCRIPTS / "horovod_mnist.py")]
SPLIT = [sys.executable, str(SCRIPTS / "horovod_split.py")]
ASYNC = [sys.executable, str(SCRIPTS / "horovod_async.py")]
IMAGENET = [sys.executable, str(SCRIPTS / "horovod_imagenet.py")]

FOUR_GPUS = {
    "CUDA_VISIBLE_DEVICES": "0,1,2,3",
    "PYTHONPATH": f"{ROOT}{os.pathsep}{Path(__file__).parent / 'pretended_gpus'}",
}
"""For a run on a machine that pretends to have four GPUs: see tests/pretended_cuda.py."""


def test_a_script_for_horovod_survives_a_kill_and_takes_each_sample_once(tmp_path: Path) -> None:
    environ = {"EPOCHS": "100000", "SAMPLES": "512", "SHOW": "1", "WORKERS": "2"}
    with running(["-np", "2", "--min-np", "1", *MNIST], tmp_path, environ) as run:
        for rank in range(2):
            run.line(f"starting as rank {rank} of 2$")
        run.line("rank 1 passed step 20")
        first = run.pids()
        os.kill(first[1], signal.SIGKILL)
        alone = run.line(rf"rank 0 of 1 pid {first[0]} at step (\d+)")
        assert int(alone[1]) >= 20, "no step was lost"
        run.line(rf"rank 0 of 2 pid {first[0]} at step", after=run.lines.index(alone.string))
        assert run.end() == 0, run.text
        assert len(re.findall(r"of 2 is done", run.text)) == 2, run.text
    taken: dict[int, list[int]] = {}
    for epoch, row in re.findall(r"epoch (\d+) took \[(.*)\]", run.text):
        taken.setdefault(int(epoch), []).extend(map(int, row.split(", ")))
    unprinted = 16  # the last batch or two of the worker that was killed
    for indices in taken.values():
        assert len(indices) <= 512 + 16, "nothing is taken twice but the last row's padding"
        assert len(set(indices)) >= 512 - unprinted
    assert sum(len(set(indices)) for indices in taken.values()) >= 512 * len(taken) - unprinted


def test_a_script_that_commits_rarely_goes_on_after_a_kill(tmp_path: Path) -> None:
    with running(["-np", "2", "--min-np", "1", *BENCHMARK], tmp_path, {"WORKERS": "2"}) as run:
        run.line("2 workers")
        run.line("rank 1 passed epoch 2")
        first = run.pids()
        os.kill(first[1], signal.SIGKILL)
        run.line(rf"rank 0 of 1 pid {first[0]} at step (\d+)")
        assert run.end() == 0, run.text
        assert len(re.findall(r"of 2 is done", run.text)) == 2, run.text


@pytest.mark.long
def test_operations_that_nobody_waits_for_yet_end_with_a_lost_worker(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path, "localhost:2", "127.0.0.2:1")
    flags = ["-np", "3", "--min-np", "2", "--max-np", "3", "--host-discovery-script", str(hosts.script)]
    with running([*flags, *ASYNC], tmp_path) as run:
        first = run.line(r"rank 0 of 3 pid (\d+) at step 0$")[1]
        alone = run.line(rf"rank 0 of 2 pid {first} at step (\d+)$")
        assert int(alone[1]) == 5, "the last step that all had made"
        run.line(rf"rank 0 of 3 pid {first} at step", after=run.lines.index(alone.string))
        (tmp_path / "stop").touch()
        assert run.end() == 0, run.text
        assert len(re.findall(r"of 3 is done", run.text)) == 3, run.text


def test_a_script_for_horovod_grows_and_shrinks(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path, "localhost:1")
    flags = ["-np", "1", "--max-np", "3", "--host-discovery-script", str(hosts.script)]
    with running([*flags, *MNIST], tmp_path, {"EPOCHS": "400"}) as run:
        pid = run.line(r"rank 0 of 1 pid (\d+) at step 0")[1]
        run.line("rank 0 passed step 5")
        hosts.are("localhost:1", "127.0.0.2:2")
        grown = run.line(rf"rank 0 of 3 pid {pid} at step (\d+)")
        hosts.are("localhost:1", "127.0.0.2:1")
        shrunk = run.line(rf"rank 0 of 2 pid {pid} at step (\d+)", after=run.lines.index(grown.string))
        assert int(shrunk[1]) >= int(grown[1])
        run.line(r"rank 1 passed step", after=run.lines.index(shrunk.string))
        assert "failed" not in run.text
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130
        assert run.gone()


@pytest.mark.long_except("benchmark")
@pytest.mark.parametrize("job", [MNIST, BENCHMARK, IMAGENET], ids=["mnist", "benchmark", "imagenet"])
def test_a_script_that_takes_the_gpu_of_its_local_rank_keeps_it(tmp_path: Path, job: list[str]) -> None:
    """A kill and a growth, on two hosts: local ranks move, and each process keeps the GPU of its slot."""
    hosts = Hosts(tmp_path, "localhost:2", "127.0.0.2:1")
    flags = ["-np", "3", "--min-np", "2", "--max-np", "4", "--host-discovery-script", str(hosts.script)]
    environ = {**FOUR_GPUS, "EPOCHS": "100000", "WORKERS": "4"}
    with running([*flags, *job], tmp_path, environ) as run:
        for rank in range(3):
            run.line(rf"rank {rank} of 3 pid \d+ at ")
        run.line("rank 2 (passed|of 3 pid .* validated)")
        second = int(run.line(r"pid (\d+) has GPU 1 as 0, local rank 1$")[1])  # on localhost, whichever host came first
        first = next(run.pids()[rank - 1] for rank, pid in run.pids().items() if pid == second)
        os.kill(first, signal.SIGKILL)
        moved = run.line(rf"pid {second} has GPU 1 as 0, local rank 0$")
        run.line(r"rank \d of 3 pid", after=run.lines.index(moved.string))
        hosts.are("localhost:2", "127.0.0.2:2")
        for rank in range(4):
            run.line(rf"rank {rank} of 4 pid \d+ at ")
        (tmp_path / "stop").touch()
        assert run.end() == 0, run.text
        assert len(re.findall(r"is done", run.text)) >= 4, run.text
    taken: dict[str, set[str]] = {}
    for pid, gpu in re.findall(r"pid (\d+) has GPU (\d as \d),", run.text):
        taken.setdefault(pid, set()).add(gpu)
    assert all(len(gpus) == 1 for gpus in taken.values()), taken
    assert sorted(gpu for gpus in taken.values() for gpu in gpus) == ["0 as 0"] * 3 + ["1 as 0"] * 2


@pytest.mark.long
def test_in_restart_mode_a_script_takes_the_gpu_of_its_local_rank_among_all(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, torch, edriver.horovod as hvd\n"
        "hvd.init()\n"
        "torch.cuda.set_device(hvd.local_rank())\n"
        "gpu = f'{torch.cuda.current_device()} of {torch.cuda.device_count()}'\n"
        "print(f'rank {hvd.rank()} has GPU {gpu}, local rank', os.environ['HOROVOD_LOCAL_RANK'], flush=True)\n"
    )
    with running(["--mode", "restart", "-np", "3", sys.executable, str(script)], tmp_path, FOUR_GPUS) as run:
        assert run.end() == 0, run.text
        for rank in range(3):
            run.line(f"rank {rank} has GPU {rank} of 4, local rank {rank}$")


@pytest.mark.long
def test_workers_that_joined_take_as_many_steps_of_torchs_sampler_as_the_others(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path, "localhost:1")
    flags = ["-np", "1", "--max-np", "3", "--reset-limit", "0", "--host-discovery-script", str(hosts.script)]
    with running([*flags, *SPLIT], tmp_path, {"WORKERS": "3"}) as run:
        run.line("rank 0 of 1 pid .* has 60 batches")
        hosts.are("localhost:1", "127.0.0.2:2")
        assert run.end() == 0, run.text
        for rank in range(3):
            run.line(f"rank {rank} of 3 pid .* has 20 batches")
        done = [run.line(rf"rank {rank} of 3 is done: (\d+) steps, on average (\d+)$") for rank in range(3)]
        assert len({each.groups() for each in done}) == 1
        assert "uneven steps" not in run.text


@pytest.mark.long
def test_what_numbers_a_gpu_otherwise_is_told_the_way_out(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch, edriver.horovod as hvd\n"
        "hvd.init()\n"
        "torch.nn.Linear(1, 1).to(torch.device('cuda', hvd.local_rank()))\n"
    )
    with running(["-np", "2", sys.executable, str(script)], tmp_path, FOUR_GPUS) as run:
        assert run.end() == 1
        run.line("CUDA error: invalid device ordinal")
        run.line(r'a worker sees one GPU, that of its slot.*torch\.device\("cuda"\)')


def test_a_script_that_is_not_elastic_runs_to_its_end(tmp_path: Path) -> None:
    with running(["-np", "2", *PLAIN], tmp_path, {"STEPS": "40"}) as run:
        assert run.end() == 0, run.text
        for rank in range(2):
            run.line(f"rank {rank} is done")


def test_a_script_that_is_not_elastic_fails_with_a_worker(tmp_path: Path) -> None:
    with running(["-np", "2", "--min-np", "1", *PLAIN], tmp_path, {"STEPS": "1000000000"}) as run:
        for rank in range(2):
            run.line(f"rank {rank} of 2 pid .* passed step 20")
        os.kill(run.pids()[1], signal.SIGKILL)
        assert run.end() == 1
        run.line("HorovodInternalError: a collective failed because a member is gone")
        assert run.gone()


@pytest.mark.long
def test_a_resize_while_a_member_has_joined_cuts_the_round_at_once(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path, "localhost:2")
    flags = ["-np", "2", "--max-np", "3", "--reset-limit", "0"]
    job = [sys.executable, str(SCRIPTS / "horovod_joins.py")]
    with running([*flags, "--host-discovery-script", str(hosts.script), *job], tmp_path) as run:
        run.line("rank 1 of 2 joins")
        hosts.are("localhost:2", "127.0.0.2:1")
        (step,) = {int(run.line(rf"rank {rank} of 3 at step (\d+)")[1]) for rank in range(3)}
        assert step > 3, "all continue from the rank that had data"
        assert run.end() == 0, run.text
        assert "uneven steps" not in run.text


THROUGH_A_PACKAGE = """
import os, sys, time
from house import hvd
hvd.init()
state = hvd.elastic.ObjectState(step=0)

@hvd.elastic.run
def train(state):
    print("rank", hvd.rank(), "of", hvd.size(), "pid", os.getpid(), "at step", state.step, flush=True)
    while not os.path.exists("stop"):
        hvd.allreduce(__import__("torch").ones(1))
        state.step += 1
        state.commit()
        time.sleep(0.02)  # leaves the processor to processes that start

train(state)
"""


@pytest.mark.long
def test_names_that_come_through_a_package_lead_to_restart_mode_which_says_that_it_keeps_no_state(
    tmp_path: Path,
) -> None:
    package = tmp_path / "installed"
    package.mkdir()
    (package / "house.py").write_text("import edriver.horovod as hvd\n")
    (tmp_path / "train.py").write_text(THROUGH_A_PACKAGE)
    environ = {"PYTHONPATH": f"{QUICK_WORKERS['PYTHONPATH']}{os.pathsep}{package}"}
    flags = ["-np", "3", "-H", "localhost:2,127.0.0.2:1"]
    with running([*flags, sys.executable, "train.py"], tmp_path, environ) as run:
        run.line(r"restart mode \(train.py does not call edriver.run\)")
        for rank in range(3):
            run.line(f"rank {rank} of 3 pid .* at step 0")
        os.kill(run.pids()[2], signal.SIGKILL)
        ended = run.line(r"round 1.1 ended: .*127.0.0.2:0\) was killed by SIGKILL")
        for rank in range(3):
            run.line(f"rank {rank} of 3 pid .* at step 0", after=run.lines.index(ended.string))
        (tmp_path / "stop").touch()
        assert run.end() == 0, run.text
        said = [
            line for line in run.lines if "hvd.elastic.run keeps no state, because this run is in restart mode" in line
        ]
        assert len(said) == 1, run.text
        assert said[0].startswith("[0]<stderr>:")
        assert "--mode elastic" in said[0]


def test_a_script_that_calls_edriver_run_is_refused_in_restart_mode(tmp_path: Path) -> None:
    with running(["-np", "2", "--mode", "restart", *NO_STANDBYS, *TRAIN], tmp_path, QUICK_WORKERS) as run:
        assert run.end() == 1
        run.line(r"RuntimeError: edriver.run was called in restart mode, .*: give --mode elastic\.")
