"""Credentials that were made before the run: agents may be early, and probes ask for health."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.process.dialling import TRAIN
from tests.process.running import BOUND, ROOT, Printing, edriver, free_ports, running


def health(port: int, service: str) -> int:
    """What a probe of the kubelet gets, once something listens there."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        asked = health_pb2.HealthCheckRequest(service=service)
        answer = health_pb2_grpc.HealthStub(channel).Check(asked, timeout=BOUND, wait_for_ready=True)
    return int(answer.status)


def agent(mark: str, credentials: Path, port: int, *flags: str) -> Printing:
    command = [sys.executable, "-m", "edriver", "agent", "--driver", f"127.0.0.1:{port}"]
    environ = {"PYTHONPATH": str(ROOT), "EPOCHS": "20000", "EDRIVER_TEST": mark}
    return Printing([*command, "--credentials", str(credentials), *flags], environ=environ)


def test_an_agent_that_is_earlier_than_its_driver_is_let_in_and_both_say_how_they_are(tmp_path: Path) -> None:
    made = edriver("credentials", str(tmp_path / "made"))
    assert made.returncode == 0, made.stderr
    port, agent_health, driver_health = free_ports(3)
    early = agent("early", tmp_path / "made" / "agent.json", port, "--host", "a", "--health-port", str(agent_health))
    try:
        serving, not_serving = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
        assert health(agent_health, "liveness") == serving
        assert health(agent_health, "readiness") == not_serving
        flags = ["--hosts-dial-in", "--run-credentials", str(tmp_path / "made" / "driver.json"), "--port", str(port)]
        line = ["-np", "1", *flags, "--health-port", str(driver_health), *TRAIN]
        with running(line, tmp_path, {"EPOCHS": "20000"}) as run:
            run.line(rf"hosts dial in at \S+:{port}")
            run.line("rank 0 passed step 5")
            assert [health(agent_health, "readiness"), health(driver_health, "readiness")] == [serving, serving]
            run.process.send_signal(signal.SIGINT)
            assert run.end() == 130
        assert early.end() == 0
    finally:
        early.process.kill()
        early.end()


def test_credentials_of_another_run_do_not_let_in(tmp_path: Path) -> None:
    for name in ("one", "two"):
        assert edriver("credentials", str(tmp_path / name)).returncode == 0
    (port,) = free_ports(1)
    flags = ["--hosts-dial-in", "--run-credentials", str(tmp_path / "one" / "driver.json"), "--port", str(port)]
    with running(["-np", "1", *flags, *TRAIN], tmp_path, {"EPOCHS": "20000"}) as run:
        run.line("hosts dial in at")
        stranger = agent(run.mark, tmp_path / "two" / "agent.json", port, "--host", "b")
        try:
            right = agent(run.mark, tmp_path / "one" / "agent.json", port, "--host", "a")
            run.line("rank 0 passed step 5")
            assert "added b" not in run.text
        finally:
            for each in (stranger, right):
                each.process.kill()
                each.end()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        pytest.param(None, "cannot be read: No such file", id="missing"),
        pytest.param("{}", "does not contain the credentials of a run", id="something-else"),
        pytest.param('{"run_id": "a", "authority": {}}', "does not contain the credentials of a run", id="half"),
    ],
)
def test_a_file_that_is_none(tmp_path: Path, text: str | None, sentence: str) -> None:
    path = tmp_path / "driver.json"
    if text is not None:
        path.write_text(text)
    done = edriver("-np", "1", "--hosts-dial-in", "--run-credentials", str(path), "true")
    assert done.returncode == 2
    assert sentence in done.stderr


def test_credentials_that_are_there_are_not_replaced(tmp_path: Path) -> None:
    assert edriver("credentials", str(tmp_path)).returncode == 0
    before = (tmp_path / "driver.json").read_bytes()
    assert (tmp_path / "driver.json").stat().st_mode & 0o777 == 0o600
    again = edriver("credentials", str(tmp_path))
    assert again.returncode == 1
    assert "driver.json cannot be written: File exists" in again.stderr
    assert (tmp_path / "driver.json").read_bytes() == before
