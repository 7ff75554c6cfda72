"""A driver, one that stands by, and etcd between them: one takes over from the other, and no worker is restarted."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.etcd.cluster import Cluster, etcd_cluster
from tests.etcd.pair import Standby, pair
from tests.process.resuming import TRAIN, assert_every_step_once, wait_for_steps
from tests.process.running import BOUND, edriver


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with etcd_cluster(tmp_path_factory.mktemp("etcd")) as running:
        yield running


def test_a_standby_takes_over_when_the_driver_is_killed(cluster: Cluster, tmp_path: Path) -> None:
    with pair(cluster, tmp_path, EPOCHS="40000") as both:
        cluster.kill_member(0)
        both.run.process.kill()
        wait_for_steps(tmp_path / "reports", 20)
        both.standby.line("another driver has taken over, number 2 of this run")
        both.standby.line("rank 0 passed step")
        os.kill(both.pids[1], signal.SIGKILL)
        both.standby.line(r"worker 2 \(rank 1, [ab]:0\) was killed by SIGKILL")
        both.standby.line(r"round 2\.\d+: 1 worker on ")
        both.standby.line(f"rank 0 of 1 pid {both.pids[0]} at step ")  # it was never restarted
        both.standby.process.send_signal(signal.SIGINT)
        assert both.standby.end() == 130, both.standby.text
        assert [code for code, _ in both.agents.end()] == [0, 0]
        cluster.start_member(0)
        client = cluster.client()
        assert client.range(b"/edriver/big/", b"/edriver/big0") == []
        client.close()
    assert_every_step_once(tmp_path / "reports")


@pytest.mark.long
def test_a_driver_that_was_stopped_finds_itself_replaced(cluster: Cluster, tmp_path: Path) -> None:
    with pair(cluster, tmp_path, STEPS="400") as both:
        both.run.process.send_signal(signal.SIGSTOP)
        both.standby.line("another driver has taken over, number 2 of this run")
        both.standby.line("rank 1 passed step ")
        both.run.process.send_signal(signal.SIGCONT)
        assert both.run.process.wait(BOUND) == 75
        both.run.line(
            r"this driver leaves run \S+, which continues without it: its lease in etcd has expired, .* has it now"
        )
        assert both.standby.end() == 0, both.standby.text
        assert [code for code, _ in both.agents.end()] == [0, 0]
    for pid in both.pids.values():
        assert f"pid {pid} is done" in both.standby.text
    assert_every_step_once(tmp_path / "reports")


def test_a_run_has_one_driver_and_its_end_is_that_of_the_standby(cluster: Cluster, tmp_path: Path) -> None:
    with pair(cluster, tmp_path, EPOCHS="40000") as both:
        second = edriver("-np", "1", "--run", "big", "--etcd", cluster.urls, *TRAIN)
        assert second.returncode == 2
        assert "edriver: run big already has a driver: " in second.stderr
        assert "Give --standby to wait until that driver is gone" in second.stderr
        other = Standby(both.standby_command, tmp_path)
        other.line("standing by for run big")
        other.process.send_signal(signal.SIGINT)
        assert (other.end(), len(other.lines)) == (130, 1), other.text
        both.run.process.send_signal(signal.SIGINT)
        assert both.run.end() == 130
        both.standby.line("run big has ended")
        assert both.standby.end() == 0
