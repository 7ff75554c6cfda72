"""Variables that name network interfaces which a host does not have."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import pytest

from edriver.agent.settings import AgentSettings
from edriver.agent.worker_settings import WorkerSettings
from edriver.agent.workers.network_variables import infiniband_devices, missing
from edriver.driver.config.training_script import program_in_restart_mode
from edriver.v1 import agent_pb2

INTO_A_NAMESPACE = ["ip", "netns", "exec", "inner", "python", "train.py"]
INTERFACES = ["lo", "eth0", "ibs3"]


@pytest.mark.parametrize(
    ("name", "value", "there"),
    [
        ("GLOO_SOCKET_IFNAME", "eth0", True),
        ("GLOO_SOCKET_IFNAME", "eth0,lo", True),
        ("GLOO_SOCKET_IFNAME", "eth", False),
        ("GLOO_SOCKET_IFNAME", "eth0,eth9", False),
        ("TP_SOCKET_IFNAME", "eth9", False),
        ("TP_SOCKET_IFNAME", "ibs3", True),
        ("NCCL_SOCKET_IFNAME", "eth", True),
        ("NCCL_SOCKET_IFNAME", "=eth", False),
        ("NCCL_SOCKET_IFNAME", "=eth0", True),
        ("NCCL_SOCKET_IFNAME", "ens,eth", True),
        ("NCCL_SOCKET_IFNAME", "ens", False),
        ("NCCL_SOCKET_IFNAME", "^docker0,lo", True),
        ("UCX_NET_DEVICES", "all", True),
        ("UCX_NET_DEVICES", "mlx5_0:1", True),
        ("UCX_NET_DEVICES", "mlx5_1:1", False),
        ("UCX_NET_DEVICES", "mlx5_1:1,eth0", True),
        ("GLOO_SOCKET_IFNAME", "", True),
        ("OTHER_SOCKET_IFNAME", "eth9", True),
    ],
)
def test_what_a_host_does_not_have_is_found(name: str, value: str, there: bool) -> None:
    assert missing({name: value}, INTERFACES, ["mlx5_0"]) == ([] if there else [name])


def test_infiniband_devices_are_read_where_there_are_any(tmp_path: Path) -> None:
    (tmp_path / "mlx5_0").mkdir()
    assert infiniband_devices(tmp_path) == ["mlx5_0"]
    assert infiniband_devices(tmp_path / "none") == []


def test_a_worker_starts_without_an_interface_that_is_not_here(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = AgentSettings("run", "localhost", 1, "127.0.0.1", tmp_path)
    with caplog.at_level(logging.WARNING):
        worker_settings = WorkerSettings(settings, {"GLOO_SOCKET_IFNAME": "eth99", "NCCL_SOCKET_IFNAME": "lo"})
        for _ in range(2):  # an agent that dials again has another
            worker_settings.take(agent_pb2.Welcome(command=["/usr/bin/python3.12", "train.py"]))
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("GLOO_SOCKET_IFNAME=eth99 is left out: this host has no such network interface, only ")
    assert "lo" in line.partition("only ")[2].split(", ")
    environment = worker_settings.environment_of(agent_pb2.StartWorker(worker_id=1, slot=0))
    assert (environment["GLOO_SOCKET_IFNAME"], environment["NCCL_SOCKET_IFNAME"]) == ("lo", "lo")


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(INTO_A_NAMESPACE, id="as-it-is"),
        pytest.param(program_in_restart_mode(INTO_A_NAMESPACE), id="program-in-restart-mode"),
    ],
)
def test_what_leads_into_another_network_keeps_its_variables(
    command: Sequence[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    worker_settings = WorkerSettings(
        AgentSettings("run", "localhost", 1, "127.0.0.1", tmp_path), {"GLOO_SOCKET_IFNAME": "eth99"}
    )
    worker_settings.take(agent_pb2.Welcome(command=command))
    assert worker_settings.environment_of(agent_pb2.StartWorker(worker_id=1, slot=0))["GLOO_SOCKET_IFNAME"] == "eth99"
    assert caplog.records == []
