"""`edriver status`, here and from elsewhere."""

from __future__ import annotations

import json
import re
import signal
import sys
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from edriver.client import Client, find, here
from tests.process.running import BOUND, SCRIPTS, edriver, running
from tests.strict_json import strict

TRAIN = [sys.executable, str(SCRIPTS / "train.py")]


def test_the_status_of_a_run_on_this_machine(tmp_path: Path) -> None:
    with running(["-np", "2", *TRAIN], tmp_path, {"EPOCHS": "20000"}) as run:
        run.line("rank 1 passed step 5")
        done = edriver("status", "--run", run.id)
        assert (done.returncode, done.stderr) == (0, "")
        first, *others = done.stdout.splitlines()
        assert first.startswith(f"run {run.id}, ")
        assert first.endswith(": round 1.1: 2 workers on localhost")
        assert "1 round; 0 failures, 0 preemptions, 0 resizes; 0 steps lost" in others
        (host,) = (line for line in others if line.startswith("host "))
        assert host.partition(";")[0] == "host localhost (2 slots) is used"  # what it uses may follow
        assert re.search(r"^worker 2 \(localhost:1, rank 1(, process \d+)?\) training", done.stdout, re.MULTILINE)
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130
        over = edriver("status", "--run", run.id)
        assert over.returncode == 1
        assert over.stderr.startswith("edriver: ")


def test_several_runs_are_listed(tmp_path: Path) -> None:
    waits = ["-np", "1", "sh", "-c", "echo started; sleep 1000"]
    with running(waits, tmp_path) as one, running(waits, tmp_path) as two:
        ids = {one.id, two.id}
        for run in (one, two):
            run.line("<stdout>:started")  # the first line has the command, too
        done = edriver("status")
        assert (done.returncode, done.stderr) == (0, "")
        *runs, last = done.stdout.splitlines()
        words = dict(zip(runs[::2], runs[1::2], strict=True))  # others of this user's may be among them
        ours = [line for line in words if line.split()[1].rstrip(",") in ids]
        assert len(ours) == 2
        assert all(line.endswith("0 workers (1 to 1): waiting: no worker is ready yet") for line in ours)
        assert {words[line] for line in ours} == {"    sh -c 'echo started; sleep 1000'"}
        assert last == "for more about one of them: edriver status --run RUN"
        assert ids <= {run["run_id"] for run in strict(edriver("status", "--json").stdout)}
        assert strict(edriver("status", "--json", "--run", one.id).stdout)["run_id"] == one.id
        refused = edriver("stop")
        assert refused.returncode == 1
        assert "there are several runs: choose one with --run: " in refused.stderr


def test_how_far_training_is(tmp_path: Path) -> None:
    with running(["-np", "2", *TRAIN], tmp_path, {"EPOCHS": "4000"}) as run:
        run.line("rank 1 passed step 5")
        with Client(here(run.id)) as client:
            reported = (answer.progress for answer in client.watch_progress() if answer.HasField("progress"))
            first = next(each for each in reported if each.steps)
            later = next(each for each in reported if each.steps > first.steps)
            assert (later.samples, later.reported["loss"] > 0) == (160, True)
            assert later.step_rate > 0
            pids = {worker.worker_id - 1: worker.pid for worker in client.status().workers}
        assert pids == run.pids()
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130


def test_an_operator_elsewhere_steers_with_a_file_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "control.json"
    args = ["-np", "2", "--min-np", "1", "--control-credentials", str(file), *TRAIN]
    with running(args, tmp_path, {"EPOCHS": "4000"}) as run:
        run.line("rank 1 passed step 5")
        port = json.loads(file.read_bytes())["drivers"][0].rpartition(":")[2]
        with find(credentials=file, driver=f"127.0.0.1:{port}") as client:
            client.resize(1)
            run.line("rank 0 of 1 .* at step")
            client.resize(2)
            run.line("rank 1 of 2 .* at step", after=len(run.lines))
            client.stop("its loss is flat")
        assert run.end() == 143
        assert "stopping the workers: its loss is flat" in run.text
        assert run.gone(), run.left_behind()


def test_status_credentials_allow_queries_from_elsewhere_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "status.json"
    args = ["-np", "1", "--status-credentials", str(file), *TRAIN]
    with running(args, tmp_path, {"EPOCHS": "20000"}) as run:
        run.line("rank 0 passed step 5")
        assert file.stat().st_mode & 0o777 == 0o600
        port = json.loads(file.read_bytes())["drivers"][0].rpartition(":")[2]
        here = ["--credentials", str(file), "--driver", f"127.0.0.1:{port}"]
        done = edriver("status", *here)
        assert (done.returncode, done.stderr) == (0, "")
        assert "worker 1 (localhost:0, rank 0" in done.stdout

        assert plain_client_sees(json.loads(file.read_bytes()), port) == "training"

        refused = edriver("agent", *here)
        assert refused.returncode != 0
        assert "these credentials do not allow this call; the credentials that hosts dial in by" in refused.stderr

        stolen = tmp_path / "wrong.json"
        stolen.write_text(json.dumps({**json.loads(file.read_bytes()), "token": "guess"}))
        wrong = edriver("status", "--credentials", str(stolen), *here[2:])
        assert wrong.returncode == 1
        assert wrong.stderr == f"edriver: run {run.id}: a token of this run is required\n"

        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130
        assert not file.exists()
        over = edriver("status", "--credentials", str(file))
        assert over.stderr == f"edriver: --credentials {file}: No such file or directory\n"


def plain_client_sees(shown: dict[str, Any], port: str) -> str:
    """The first worker's state, by a client that knows of edriver only what the file and server reflection say."""
    credentials = grpc.composite_channel_credentials(
        grpc.ssl_channel_credentials(shown["authority"].encode()), grpc.access_token_call_credentials(shown["token"])
    )
    options = (("grpc.ssl_target_name_override", shown["server_name"]), ("grpc.enable_http_proxy", 0))
    with grpc.secure_channel(f"127.0.0.1:{port}", credentials, options) as channel:
        pool = DescriptorPool(ProtoReflectionDescriptorDatabase(channel))
        method = pool.FindServiceByName("edriver.v1.StatusService").FindMethodByName("GetRun")
        ask = channel.unary_unary(
            "/edriver.v1.StatusService/GetRun",
            GetMessageClass(method.input_type).SerializeToString,
            GetMessageClass(method.output_type).FromString,
        )
        answer: Any = ask(GetMessageClass(method.input_type)(), timeout=BOUND)
        worker = answer.run.workers[0]
        name = worker.DESCRIPTOR.fields_by_name["state"].enum_type.values_by_number[worker.state].name
        return str(name.removeprefix("WORKER_STATE_").lower())


def test_files_that_are_no_credentials(tmp_path: Path) -> None:
    file = tmp_path / "status.json"
    file.write_text("[]")
    assert "not a join config of edriver's driver" in edriver("status", "--credentials", str(file)).stderr
    assert "give the --credentials" in edriver("status", "--driver", "a:1").stderr


def test_where_there_is_no_run(tmp_path: Path) -> None:
    done = edriver("status", "--run", "0000")
    assert done.returncode == 1
    assert done.stderr.startswith("edriver: ")


def test_top_without_a_terminal_says_what_to_use(tmp_path: Path) -> None:
    done = edriver("top")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "edriver: edriver top needs a terminal; edriver status prints the same once\n"
