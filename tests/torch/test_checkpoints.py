"""Checkpoints of a TorchState on disk: what they hold, when they are written, and what is loaded."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import pickle
import random
import re
import shutil
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch

from edriver.checkpoint_folder.folder import MANIFEST, CheckpointFolder
from edriver.checkpoint_folder.manifest import Manifest
from edriver.checkpoint_folder.ownership import FolderOwner, Ownership
from edriver.model.ids import RoundId
from edriver.system.proc_stat import process_name
from edriver.worker import context
from edriver.worker.checkpoints import state_checkpoints as room
from edriver.worker.errors import CheckpointError
from edriver.worker.reports import checkpoints as written
from edriver.worker.state.on_disk import CheckpointSchedule
from edriver.worker.state.torch_state import TorchState
from tests.attacks.attackers import OTHER_ACCOUNT
from tests.needs import MOTO, ROOT_USER, require
from tests.torch.checkpointed_states import new_state, train
from tests.torch.fingerprint import fingerprint

pytestmark = pytest.mark.usefixtures("written_at_once")


@pytest.fixture(params=["path", "memory", pytest.param("s3", marks=pytest.mark.s3)])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "s3":
        return f"s3://{request.getfixturevalue('bucket')}/{uuid.uuid4().hex}"
    return str(tmp_path / "c") if request.param == "path" else f"memory://{uuid.uuid4().hex}"


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """The name of a bucket in a server that answers as S3 does, on this machine (`make s3`)."""
    require(MOTO)
    import moto.server
    import s3fs

    server = moto.server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }.items():
            patch.setenv(name, value)
        s3fs.S3FileSystem().mkdir("checkpoints")
        yield "checkpoints"
    server.stop()


def test_a_fresh_state_that_loads_it_goes_on_as_the_old_one(location: str) -> None:
    old = new_state(location, weights={"mean": torch.arange(5.0), 3: [torch.ones(2)]}, epoch=1, note="x")
    train(old, 3)
    assert old.steps_made == 3
    drawn = random.random(), torch.rand(2)  # after the last commit
    fresh = new_state(location, seed=9, weights={}, epoch=0, note="")
    assert fresh.newest_checkpoint(look=True) == 3
    fresh.load_checkpoint()
    assert fingerprint(fresh) == fingerprint(old)
    assert fresh.steps_made == 3
    assert fresh.weights.keys() == {"mean", 3}
    assert fresh.sampler.state_dict() == old.sampler.state_dict()
    again = random.random(), torch.rand(2)
    assert again[0] == drawn[0]
    assert torch.equal(again[1], drawn[1])
    train(old, 2)
    train(fresh, 2)
    assert fingerprint(fresh) == fingerprint(old)


def test_what_is_loaded_is_the_last_commit(tmp_path: Path) -> None:
    train(new_state(tmp_path), 2)
    state = new_state(tmp_path, seed=9, every=1000)
    state.load_checkpoint()
    before = fingerprint(state)
    train(state, 1)
    state.optimizer.param_groups[0]["lr"] = 7.0
    state.load_checkpoint()
    state.restore()
    assert fingerprint(state) == before


def test_one_that_is_not_ahead_is_not_offered(tmp_path: Path) -> None:
    state = new_state(tmp_path)
    assert state.newest_checkpoint(look=True) == 0
    train(state, 2)
    assert state.newest_checkpoint(look=True) == 0
    assert new_state(tmp_path).newest_checkpoint(look=False) == 0
    assert TorchState().newest_checkpoint(look=True) is None


def test_one_that_was_loaded_in_a_round_that_broke_is_offered_again(tmp_path: Path) -> None:
    train(new_state(tmp_path), 2)
    state = new_state(tmp_path)
    state.load_checkpoint()
    assert state.newest_checkpoint(look=True) == 2
    train(state, 1)
    assert state.newest_checkpoint(look=True) == 0


def test_only_the_last_ones_are_kept(location: str) -> None:
    train(new_state(location, keep=2), 5)
    assert [found.steps for found in CheckpointFolder(location).found()] == [5, 4]


def test_it_says_what_is_in_it(tmp_path: Path) -> None:
    train(new_state(tmp_path, epoch=4), 2)
    newest = CheckpointFolder(str(tmp_path)).newest()
    assert newest is not None
    assert newest.manifest is not None
    manifest = newest.manifest
    assert (manifest.steps, manifest.size, manifest.time, manifest.torch) == (2, 1, 1000.0, str(torch.__version__))
    assert manifest.entries["model.0.weight"].shape == (8, 4)
    assert manifest.entries["model.0.weight"].nbytes == 128
    assert "optimizer.state.0.weight.exp_avg" in manifest.entries
    assert "epoch" in manifest.entries


def test_content_that_has_changed_is_found_and_the_one_before_is_taken(
    location: str, caplog: pytest.LogCaptureFixture
) -> None:
    train(new_state(location), 3)
    folder = CheckpointFolder(location)
    newest = folder.newest()
    assert newest is not None
    fs, path = fsspec.core.url_to_fs(folder.place(newest.name))
    data = bytearray(fs.cat_file(f"{path}/__0_0.distcp"))
    data[len(data) // 2] ^= 1
    fs.pipe_file(f"{path}/__0_0.distcp", bytes(data))
    state = new_state(location, seed=9)
    state.load_checkpoint()
    assert state.steps_made == 2
    assert "has changed since it was written" in caplog.text
    assert [found.steps for found in folder.found() if found.whole] == [2, 1]


class Planted:
    """Runs code where it is unpickled."""

    def __init__(self, place: Path) -> None:
        self._place = place

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._place),)


def test_one_that_another_account_has_written_is_not_unpickled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    require(ROOT_USER)
    train(new_state(tmp_path / "c"), 2)
    newest = tmp_path / "c" / "checkpoint-000002"
    manifest = json.loads((newest / MANIFEST).read_text())
    planted = pickle.dumps(Planted(tmp_path / "taken"))
    (newest / ".metadata").write_bytes(planted)
    manifest["files"][".metadata"] = {"bytes": len(planted), "sha256": hashlib.sha256(planted).hexdigest()}
    (newest / MANIFEST).write_text(json.dumps(manifest))
    for path in (newest, *newest.iterdir()):
        os.chown(path, OTHER_ACCOUNT, OTHER_ACCOUNT)
    state = new_state(tmp_path / "c", seed=9)
    state.load_checkpoint()
    assert not (tmp_path / "taken").exists()
    assert state.steps_made == 1
    assert re.search(
        rf"checkpoint-000002 cannot be loaded: .*checkpoint-000002 belongs to user ID {OTHER_ACCOUNT}, "
        r"and .*using the one before it",
        caplog.text,
    )
    shutil.rmtree(tmp_path / "c" / "checkpoint-000001")
    with pytest.raises(CheckpointError, match=r"no checkpoint in .*make your own copy \(cp -r\)"):
        new_state(tmp_path / "c").load_checkpoint()


def test_one_of_another_account_does_not_have_ones_own_removed(tmp_path: Path) -> None:
    """In a folder that both may write to, whatever steps and number it has."""
    require(ROOT_USER)
    train(new_state(tmp_path), 1)
    foreign = (tmp_path / "checkpoint-000001").rename(tmp_path / "checkpoint-900000")
    said = json.loads((foreign / MANIFEST).read_text())
    (foreign / MANIFEST).write_text(json.dumps({**said, "steps": 10**9}))
    for path in (foreign, *foreign.iterdir()):
        os.chown(path, OTHER_ACCOUNT, OTHER_ACCOUNT)
    state = new_state(tmp_path, keep=1)
    assert state.newest_checkpoint(look=True) == 10**9  # to load it says why it is refused
    train(state, 3)
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == ["checkpoint-900000", "checkpoint-900003"]
    fresh = new_state(tmp_path, seed=9)
    assert fresh.newest_checkpoint(look=True) == 3
    fresh.load_checkpoint()
    assert fresh.steps_made == 3


@pytest.mark.parametrize("place", ["", ".metadata", "__0_0.distcp", MANIFEST])
def test_one_that_others_can_write_is_not_unpickled(tmp_path: Path, place: str) -> None:
    train(new_state(tmp_path), 1)
    (tmp_path / "checkpoint-000001" / place).chmod(0o775)
    with pytest.raises(CheckpointError, match=r"can be changed by its group .*chmod -R go-w .+/checkpoint-000001'?$"):
        new_state(tmp_path).load_checkpoint()


def test_what_it_writes_can_be_loaded_whatever_the_umask(tmp_path: Path) -> None:
    """Groups share folders by a umask of 002: each of them still loads its own."""
    before = os.umask(0)
    try:
        train(new_state(tmp_path / "c"), 2)
    finally:
        os.umask(before)
    state = new_state(tmp_path / "c", seed=9)
    state.load_checkpoint()
    assert state.steps_made == 2


def test_where_none_can_be_loaded_the_error_says_why(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no whole one"):
        new_state(tmp_path).load_checkpoint()


def test_one_of_another_state_is_refused(tmp_path: Path) -> None:
    train(new_state(tmp_path), 1)
    with pytest.raises(CheckpointError, match=r"belongs to another state: .*'epoch'.*another folder"):
        new_state(tmp_path, epoch=1).load_checkpoint()
    model = torch.nn.Linear(2, 2)
    other = new_state(tmp_path)
    other.model = model
    with pytest.raises(CheckpointError, match="belongs to another state"):
        other.load_checkpoint()


def another_run(location: str | Path, run_id: str, round_id: RoundId, process: int) -> Ownership:
    """A claim of a process on this machine."""
    me = replace(FolderOwner.this_process({"EDRIVER_RUN_ID": run_id}), process=process_name(process))
    claim = Ownership(CheckpointFolder(str(location)), me)
    claim.claim(round_id)
    return claim


def test_a_folder_that_another_run_has_is_refused_by_its_name(location: str) -> None:
    other = another_run(location, "5d2f01aa", RoundId(1, 3), os.getppid())
    named = r"in use by another run: run 5d2f01aa \(rank 0 of round 1\.3, pid "
    with pytest.raises(CheckpointError, match=named):
        new_state(location).newest_checkpoint(look=True)
    with pytest.raises(CheckpointError, match=named):
        new_state(location).sync()
    other.release()
    assert new_state(location).newest_checkpoint(look=True) == 0


@pytest.mark.parametrize(
    ("run_id", "said"),
    [("another", "cannot be written to .*: another run has taken over .*: run another "), ("mine", "no checkpoint of")],
    ids=["another-run", "a-later-round"],
)
@pytest.mark.parametrize("when", ["before", "while"])
def test_a_writer_that_was_stopped_until_its_folder_was_taken_over_leaves_nothing_there(
    location: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, run_id: str, said: str, when: str
) -> None:
    caplog.set_level(logging.INFO, "edriver.worker")
    monkeypatch.setenv("EDRIVER_RUN_ID", "mine")
    me = FolderOwner.this_process
    monkeypatch.setattr(FolderOwner, "this_process", staticmethod(lambda environ: replace(me(environ), process="1 1")))
    state = new_state(location, keep=1)
    train(state, 1)
    monkeypatch.setattr(FolderOwner, "this_process", staticmethod(me))
    before = [found.name for found in CheckpointFolder(location).found()]
    seal = CheckpointFolder.seal

    def stopped(folder: CheckpointFolder, name: str, manifest: Manifest) -> None:
        another_run(location, run_id, RoundId(1, 9), os.getpid())
        seal(folder, name, manifest)

    if when == "before":
        another_run(location, run_id, RoundId(1, 9), os.getpid())
    else:
        monkeypatch.setattr(CheckpointFolder, "seal", stopped)
    train(state, 2)
    assert [found.name for found in CheckpointFolder(location).found()] == before
    assert len(re.findall(said, caplog.text)) == (1 if run_id == "another" else 2)


def test_the_folder_is_free_once_the_run_has_ended_well(tmp_path: Path) -> None:
    script = (
        "import os, sys, edriver\n"
        "state = edriver.TorchState(checkpoint=sys.argv[1], every=1)\n"
        "def train(state):\n"
        "    state.commit()\n"
        "    print(*sorted(os.listdir(sys.argv[1])))\n"
        "edriver.run(train)(state)\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", script, str(tmp_path / "c")]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "owner-000001.json" in printed
    assert [path.name for path in (tmp_path / "c").iterdir()] == ["checkpoint-000001"]


def full_disk(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_said_once_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "edriver.worker")
    state, failures = new_state(tmp_path), written.failures
    with monkeypatch.context() as patch:
        patch.setattr(CheckpointFolder, "seal", full_disk)
        train(state, 3)
    assert written.failures == failures + 3
    assert caplog.text.count("No space left on device; training continues") == 1
    assert list(tmp_path.glob("checkpoint-*")) == []  # what was begun is removed
    train(state, 1)
    assert "checkpoints can be written" in caplog.text
    assert [found.steps for found in CheckpointFolder(str(tmp_path)).found()] == [4]


def test_a_folder_that_cannot_be_made_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    train(new_state(tmp_path / "file" / "below"), 2)
    assert caplog.text.count("training continues") == 1


def test_a_folder_that_cannot_be_made_is_said_before_a_checkpoint_is_due(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    state, failures = new_state(tmp_path / "file" / "below", every=3), written.failures
    state.sync()
    train(state, 2)
    assert caplog.text.count("training continues") == 1
    assert written.failures == failures
    train(state, 1)
    assert caplog.text.count("training continues") == 1
    assert written.failures == failures + 1


def test_what_cannot_be_pickled_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    train(new_state(tmp_path, key=lambda: 0), 2)
    assert caplog.text.count("training continues") == 1


class Held:
    """Keeps jobs until the test runs them."""

    def __init__(self) -> None:
        self.jobs: list[Callable[[], None]] = []

    def __call__(self, job: Callable[[], None]) -> None:
        self.jobs.append(job)


@pytest.mark.parametrize("commits", [1, 3])
def test_what_is_written_is_the_commit_though_others_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, commits: int
) -> None:
    held = Held()
    monkeypatch.setattr(room.StateCheckpoints.__init__, "__defaults__", (held, lambda: 1000.0))
    state = new_state(tmp_path)
    for _ in range(3):
        train(state, 1)
        then = fingerprint(state)
        train(state, commits)
        (job,) = held.jobs
        held.jobs.clear()
        job()
        fresh = new_state(tmp_path, seed=9)
        fresh.load_checkpoint()
        assert fingerprint(fresh) == then
    assert caplog.text.count("takes longer than the interval") == 1


def test_commits_use_the_memory_of_two_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held()
    monkeypatch.setattr(room.StateCheckpoints.__init__, "__defaults__", (held, lambda: 1000.0))
    state, seen = new_state(tmp_path, every=2), set()
    for _ in range(6):
        train(state, 2)
        parts, _, loan = state.committed_parts()
        loan.give_back()
        seen.add(parts["model"][1]["state"]["0.weight"].data_ptr())
        train(state, 1)
        state.steps_made += 1
        held.jobs.pop()()
    assert len(seen) <= 2


def test_check_host_updates_commits_where_one_is_due(tmp_path: Path) -> None:
    state = new_state(tmp_path, every=2)
    for _ in range(4):
        state.check_host_updates()
    assert [found.steps for found in CheckpointFolder(str(tmp_path)).found()] == [4, 2]


@pytest.fixture
def met(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The requests that were reported as met."""
    numbers: list[int] = []
    requests = context.SaveRequests()
    requests.report = numbers.append
    monkeypatch.setattr(context.current, "save_requests", requests)
    return numbers


def test_an_operators_request_is_met_at_the_next_boundary_once(tmp_path: Path, met: list[int]) -> None:
    state, asked = new_state(tmp_path, every=1000), context.current.save_requests
    train(state, 2)
    asked.request(RoundId(7, 7), 1)  # of another round
    train(state, 1)
    assert CheckpointFolder(str(tmp_path)).found() == []
    asked.request(context.assignment().round_id, 1)
    for _ in range(2):
        state.check_host_updates()
    assert [found.steps for found in CheckpointFolder(str(tmp_path)).found()] == [4]
    assert met == [1]


def test_a_request_is_met_once_the_checkpoint_before_it_is_written(tmp_path: Path, met: list[int]) -> None:
    state = new_state(tmp_path, every=1000)
    train(state, 1)
    idle: threading.Event = state._disk.checkpoints._idle  # type: ignore[union-attr]
    idle.clear()
    context.current.save_requests.request(context.assignment().round_id, 1)
    train(state, 1)
    assert CheckpointFolder(str(tmp_path)).found() == []
    idle.set()
    train(state, 2)
    assert [found.steps for found in CheckpointFolder(str(tmp_path)).found()] == [3]
    assert met == [1]


def test_a_request_that_could_not_be_written_is_met_by_the_next_checkpoint_that_is_due(
    tmp_path: Path, met: list[int]
) -> None:
    folder = tmp_path / "checkpoints"
    folder.touch()
    state = new_state(folder, every=3)
    context.current.save_requests.request(context.assignment().round_id, 1)
    train(state, 1)
    folder.unlink()
    train(state, 1)
    assert not folder.exists(), "a full disk is not written to at once again"
    assert met == []
    train(state, 1)
    assert [found.steps for found in CheckpointFolder(str(folder)).found()] == [3]
    assert met == [1]


def test_a_rehearsal_writes_none(tmp_path: Path) -> None:
    state = new_state(tmp_path)
    with state.rehearsal():
        train(state, 1)
    assert state.steps_made == 0
    assert list(tmp_path.iterdir()) == []


def test_by_default_a_thread_writes_it(tmp_path: Path) -> None:
    done = threading.Event()
    room.in_a_thread(done.set)
    assert done.wait(60)


@pytest.mark.parametrize(
    ("every", "error"),
    [(0, ValueError), (timedelta(0), ValueError), (1.5, TypeError), (True, TypeError)],
)
def test_an_interval_is_checked(tmp_path: Path, every: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="every="):
        new_state(tmp_path, every=every)


def test_the_number_to_keep_is_checked(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="keep="):
        new_state(tmp_path, keep=0)


def test_one_is_due_in_each_stretch_of_time() -> None:
    now = [1000.0]
    schedule = CheckpointSchedule(timedelta(seconds=60), lambda: now[0])
    due = []
    for now[0] in (1000.0, 1019.0, 1020.0, 1070.0, 1081.0, 1300.0, 900.0, 910.0):
        due.append(schedule.due(1))
    assert due == [False, False, True, False, True, True, True, False]


def test_a_manifest_is_plain_json(tmp_path: Path) -> None:
    train(new_state(tmp_path), 1)
    (text,) = [path.read_text() for path in tmp_path.glob("*/manifest.json")]
    assert json.loads(text)["steps"] == 1
