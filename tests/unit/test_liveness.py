"""What tells a process that lives from one that does not, apart from any process."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest

from edriver.agent.health.listening import nothing_listens
from edriver.agent.health.process_state import halt_of_process
from edriver.agent.health.unresponsive import UnresponsiveWatch
from edriver.common.lease import ProcessClock
from edriver.model.cause import Halt
from edriver.model.stall_limits import Phase
from edriver.system.life_lock import LifeLock
from edriver.v1 import rounds_pb2
from edriver.wire.conversion import span_seconds


@pytest.mark.parametrize(
    ("state", "frozen", "halt"),
    [
        pytest.param("R", 0, None, id="computes"),
        pytest.param("S", 0, None, id="sleeps-in-a-call"),
        pytest.param("D", 0, None, id="waits-for-a-disk"),
        pytest.param("T", 0, Halt.STOPPED, id="stopped"),
        pytest.param("t", 0, Halt.TRACED, id="held-by-a-debugger"),
        pytest.param("S", 1, Halt.FROZEN, id="in-a-frozen-container"),
    ],
)
def test_the_kernel_says_what_keeps_a_process_from_running(
    tmp_path: Path, state: str, frozen: int, halt: Halt | None
) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/stat").write_text(f"7 (a (T) name) {state} 1 7 7 0")
    (tmp_path / "7/cgroup").write_text("0::/job/7\n")
    (tmp_path / "cgroups/job/7").mkdir(parents=True)
    (tmp_path / "cgroups/job/7/cgroup.events").write_text(f"populated 1\nfrozen {frozen}\n")
    assert halt_of_process(7, tmp_path, tmp_path / "cgroups") is halt


def test_nothing_keeps_a_process_from_running_that_has_ended(tmp_path: Path) -> None:
    assert halt_of_process(7, tmp_path, tmp_path) is None


def test_nothing_keeps_this_process_from_running() -> None:
    assert halt_of_process(os.getpid()) is None


LIMITS = {"step": 20.0, "eval": 100.0, "save": 0.0}


@pytest.mark.parametrize(
    ("phase", "seconds"),
    [(Phase.STEP, 19.0), (Phase.EVAL, 99.0), (Phase.SAVE, 1e6), (Phase.INIT, 1e6), (None, 1e6)],
)
def test_a_mute_worker_may_take_as_long_as_its_phase(phase: Phase | None, seconds: float) -> None:
    asked: list[bool] = []
    mute = UnresponsiveWatch(lambda: asked.append(True))
    assert [mute.check(s, phase, LIMITS) for s in (5.0, seconds, seconds)] == [None] * 3
    assert not asked


def test_a_worker_whose_long_call_has_just_ended_is_left_alone() -> None:
    """Its phase has changed, and its answer is on the way."""
    asked: list[bool] = []
    mute = UnresponsiveWatch(lambda: asked.append(True))
    assert mute.check(100.0, Phase.EVAL, {Phase.EVAL: 120.0, Phase.STEP: 5.0}) is None
    for seconds in (100.5, 105.0):
        assert mute.check(seconds, Phase.STEP, {Phase.EVAL: 120.0, Phase.STEP: 5.0}) is None
    assert not asked
    mute.check(106.0, Phase.STEP, {Phase.EVAL: 120.0, Phase.STEP: 5.0})
    assert asked


def test_a_worker_that_does_not_answer_is_asked_and_then_reported_once() -> None:
    asked: list[bool] = []
    mute = UnresponsiveWatch(lambda: asked.append(True))
    mute.round_id.CopyFrom(rounds_pb2.RoundId(incarnation=1, n=3))
    assert mute.check(20.0, Phase.STEP, LIMITS) is None
    assert asked == [True]
    report = mute.check(20.5, Phase.STEP, LIMITS)
    assert report is not None
    assert (
        report.worker_stalled.phase,
        span_seconds(report.worker_stalled.duration),
        report.worker_stalled.round_id.n,
    ) == ("step", 20.5, 3)
    assert report.worker_stalled.WhichOneof("threads") == "stacks_on_stderr"
    assert mute.check(21.0, Phase.STEP, LIMITS) is None
    # It has answered meanwhile: this is another silence.
    assert mute.check(5.0, Phase.STEP, LIMITS) is None
    assert mute.check(20.0, Phase.STEP, LIMITS) is None
    assert mute.check(20.5, Phase.STEP, LIMITS) is not None


def test_a_phase_is_read_by_another_process_that_maps_the_file(tmp_path: Path) -> None:
    path = tmp_path / "w.life"
    theirs = LifeLock.create(path)
    own = LifeLock(path)
    assert theirs.phase is None
    for phase in (*Phase, None):
        own.show_phase(phase)
        assert theirs.phase is phase


def test_time_that_a_process_did_not_live_through_is_not_counted() -> None:
    real = [100.0]
    lived = ProcessClock(lambda: real[0], longest=2.0)
    for at, counted in ((101.0, 101.0), (101.5, 101.5), (151.5, 103.5), (152.5, 104.5)):
        real[0] = at
        assert lived() == counted


def test_whether_something_listens_on_a_unix_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path("driver.sock")  # a socket's path has at most 107 bytes
    assert asyncio.run(nothing_listens(f"unix:{path}"))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        assert not asyncio.run(nothing_listens(f"unix:{path}"))  # listens without accept, like a stopped process
    assert asyncio.run(nothing_listens(f"unix:{path}"))


def test_whether_something_listens_at_any_of_several_addresses() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_server(("127.0.0.1", 0)) as other:
        free = other.getsockname()[1]
        other.close()
        used = listener.getsockname()[1]
        assert not asyncio.run(nothing_listens(f"ipv4:127.0.0.1:{free},127.0.0.1:{used}"))
        assert asyncio.run(nothing_listens(f"ipv4:127.0.0.1:{free}"))
