"""The small pure parts of the agent: leases, the guard's list, a worker's environment, process tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from edriver.agent.settings import AgentSettings
from edriver.agent.worker_settings import WorkerSettings
from edriver.agent.workers.ready_socket import check_folder
from edriver.agent.workers.worker_environment import (
    GLOO_DEFAULTS,
    HOROVOD_DEFAULTS,
    MALLOC_DEFAULTS,
    NCCL_DEFAULTS,
    cuda_devices,
    restart_environment,
    worker_environment,
)
from edriver.common.lease import Lease
from edriver.system.guard_main import duties
from edriver.system.proc_stat import PARENT_FIELD, fields_of
from edriver.v1 import agent_pb2


class FakeClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def ticks_until_expired(lease: Lease, clock: FakeClock, step: float) -> int:
    for count in range(1, 1000):
        clock.now += step
        if lease.tick():
            return count
    raise AssertionError("the lease never expires")


def test_a_lease_expires_after_its_duration() -> None:
    clock = FakeClock()
    lease = Lease(8.0, clock)
    assert lease.period == 0.8
    assert ticks_until_expired(lease, clock, 0.5) == 16
    lease.renew()
    assert ticks_until_expired(lease, clock, 0.5) == 16


def test_the_tick_that_ends_a_lease_comes_when_it_ends() -> None:
    clock = FakeClock()
    lease = Lease(5.0, clock)
    clock.now += 0.25
    lease.renew()
    for _ in range(9):
        assert lease.next_tick == 0.5
        clock.now += 0.5
        assert not lease.tick()
    clock.now += 0.125
    assert not lease.tick()
    assert lease.next_tick == 0.375
    clock.now += 0.375
    assert lease.tick()
    assert lease.next_tick == 0.0


def test_a_long_gap_between_two_ticks_counts_little() -> None:
    clock = FakeClock()
    lease = Lease(10.0, clock)
    clock.now += 1000
    assert not lease.tick()
    assert ticks_until_expired(lease, clock, 1.0) == 8


def test_ticks_that_are_a_little_late_count_in_full() -> None:
    clock = FakeClock()
    lease = Lease(5.0, clock, period=1.0)
    assert ticks_until_expired(lease, clock, 1.9) == 3


def test_a_renewal_between_ticks_counts_from_there() -> None:
    clock = FakeClock()
    lease = Lease(1.0, clock)
    clock.now += 0.2
    lease.renew()
    clock.now += 0.1
    assert not lease.tick()
    clock.now += 0.2
    assert not any(lease.tick() for _ in range(10))


@pytest.mark.parametrize(
    ("lines", "groups", "in_order"),
    [
        ([], set(), False),
        ([b"/other/1", b"+10"], {10}, False),
        ([b"+10", b"+11"], {10, 11}, False),
        ([b"+10", b"-10", b"+11"], {11}, False),
        ([b"-10", b"+10", b"."], {10}, True),
        ([b"+10", b"", b"+", b"-", b"*10", b"10", b"+ten", b"+1 1", b"+\xff", b"..", b"+11"], {10, 11}, False),
        ([b"+0", b"+1", b"+-1", b"+00000001", b"+" + b"9" * 5000, b"+10"], {10}, False),
    ],
)
def test_the_guards_duties(lines: list[bytes], groups: set[int], in_order: bool) -> None:
    folders = [line.decode() for line in lines if line.startswith(b"/")]
    assert duties(iter(lines)) == (groups, folders, in_order)


@pytest.mark.parametrize(
    ("stat", "parent"),
    [("12 (python) S 7 12 12 0", 7), ("12 (a) b (c) R 9 (x) R 1 0", 1), ("12 (tmux: x y) Z 8 1", 8)],
)
def test_the_parent_in_a_process_table(stat: str, parent: int) -> None:
    assert int(fields_of(stat)[PARENT_FIELD]) == parent


def environment(
    address: str = "10.0.0.1",
    slot: int = 1,
    devices: Sequence[str] = (),
    interface: str | None = None,
    place_in_replica: tuple[int, int] | None = None,
    tls_folder: Path | None = None,
    proxy_path: Path | None = None,
    checkpoints_path: Path | None = None,
    stall_limits: Mapping[str, float] | None = None,
    clock_ahead: float | None = None,
    inherited: Mapping[str, str] = {},
    **base: str,
) -> dict[str, str]:
    return worker_environment(
        {**inherited, **base},
        run_id="r",
        worker_id=3,
        host="h",
        slot=slot,
        address=address,
        socket_path=Path("/s/w3.sock"),
        ready_path=Path("/s/ready.sock"),
        life_path=Path("/s/w.life"),
        store_path=Path("/s/w3.store"),
        agent_pid=7,
        interface=interface,
        devices=devices,
        place_in_replica=place_in_replica,
        tls_folder=tls_folder,
        proxy_path=proxy_path,
        checkpoints_path=checkpoints_path,
        stall_limits=stall_limits,
        clock_ahead=clock_ahead,
    )


def test_a_worker_gets_its_way_to_the_agent_and_defaults() -> None:
    assert environment(PATH="/bin") == {
        "PATH": "/bin",
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        "EDRIVER_RUN_ID": "r",
        "EDRIVER_WORKER_ID": "3",
        "EDRIVER_HOST": "h",
        "EDRIVER_SLOT": "1",
        "EDRIVER_STORE": "10.0.0.1",
        "EDRIVER_SOCKET": "/s/w3.sock",
        "EDRIVER_READY": "/s/ready.sock",
        "EDRIVER_LIFE": "/s/w.life",
        "EDRIVER_OMP_DEFAULT": "1",
        "EDRIVER_AGENT_PID": "7",
        "GRPC_ENABLE_FORK_SUPPORT": "0",
        **MALLOC_DEFAULTS,
        **GLOO_DEFAULTS,
        **NCCL_DEFAULTS,
        **HOROVOD_DEFAULTS,
    }


def test_a_run_inside_a_worker_of_another_has_nothing_of_that() -> None:
    told = {
        **environment(
            place_in_replica=(1, 2),
            tls_folder=Path("/t"),
            proxy_path=Path("/p"),
            checkpoints_path=Path("/c"),
            stall_limits={"step": 1.0},
            clock_ahead=5.0,
        ),
        **restart_environment(address="h", error_path=Path("/e"), imports_path=Path("/i"), max_restarts=3),
    }
    others = {name: "another run's" for name in told if name.startswith("EDRIVER_")}
    assert len(others) == 22
    assert environment(inherited=others) == environment()


def test_a_worker_gets_its_place_in_a_replica() -> None:
    made = environment(place_in_replica=(1, 2))
    assert (made["EDRIVER_POSITION"], made["EDRIVER_REPLICA_SIZE"]) == ("1", "2")


def test_what_the_user_has_set_stays() -> None:
    made = environment("127.0.0.1", OMP_NUM_THREADS="8", PYTHONUNBUFFERED="", GLOO_SOCKET_IFNAME="eth1")
    assert (made["OMP_NUM_THREADS"], made["PYTHONUNBUFFERED"], made["GLOO_SOCKET_IFNAME"]) == ("8", "", "eth1")


def test_what_another_launcher_has_left_is_not_handed_on() -> None:
    left = dict.fromkeys(
        [
            *("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE"),
            *("OMPI_COMM_WORLD_RANK", "PMI_SIZE", "HOROVOD_RANK", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_ID"),
            *("EDRIVER_WORKER_PID", "HOROVOD_ELASTIC"),
        ],
        "5",
    )
    kept = {"HOROVOD_FUSION_THRESHOLD": "1", "SLURM_JOB_ID": "77", "OMPI_MCA_btl": "tcp", "MASTER": "mine"}
    base: dict[str, Any] = {**left, **kept}
    assert environment(**base) == {**environment(), **kept}


@pytest.mark.parametrize(
    ("address", "interface"),
    [("127.0.0.1", "lo"), ("127.0.0.2", "lo"), ("::1", "lo"), ("localhost", "lo"), ("10.0.0.1", None), ("b", None)],
)
def test_gloo_stays_on_the_loopback_interface(address: str, interface: str | None) -> None:
    assert environment(address).get("GLOO_SOCKET_IFNAME") == interface


def test_on_the_network_the_interface_of_the_hosts_address_is_used() -> None:
    made = environment("10.0.0.1", interface="eth3")
    assert (made["GLOO_SOCKET_IFNAME"], made["NCCL_SOCKET_IFNAME"]) == ("eth3", "=eth3")
    assert environment("10.0.0.1", interface="eth3", GLOO_SOCKET_IFNAME="mine")["GLOO_SOCKET_IFNAME"] == "mine"


@pytest.mark.parametrize(
    ("address", "store"),
    [
        pytest.param("127.0.0.2", "/s/w3.store", id="this-machine-alone"),
        pytest.param("10.0.0.1", "10.0.0.1", id="the-network"),
    ],
)
def test_a_store_is_on_the_network_only_where_it_has_to_be(address: str, store: str) -> None:
    assert environment(address)["EDRIVER_STORE"] == store


@pytest.mark.parametrize(
    ("slot", "devices", "visible"),
    [
        pytest.param(0, ["4", "6"], "4", id="the-slots-own"),
        pytest.param(1, ["4", "6"], "6", id="the-next-slots"),
        pytest.param(2, ["4", "6"], "4", id="shared"),
        pytest.param(0, [], None, id="no-gpu"),
    ],
)
def test_a_slot_keeps_its_gpu(slot: int, devices: list[str], visible: str | None) -> None:
    assert environment(slot=slot, devices=devices).get("CUDA_VISIBLE_DEVICES") == visible


@pytest.mark.parametrize(
    ("chosen", "found"),
    [
        pytest.param(None, ["0", "1"], id="all"),
        pytest.param("3, GPU-8f,5", ["3", "GPU-8f", "5"], id="the-users-choice"),
        pytest.param("", [], id="the-user-wants-none"),
        pytest.param("-1", [], id="none-as-cuda-reads-it"),
        pytest.param("2,-1,3", ["2"], id="up-to-the-first-that-is-none"),
        pytest.param("MIG-1a,MIG-2b,MIG-3c", ["MIG-1a", "MIG-2b", "MIG-3c"], id="instances-of-mig"),
    ],
)
def test_the_hosts_gpus(tmp_path: Path, chosen: str | None, found: list[str]) -> None:
    for name in ("nvidia0", "nvidia7", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    assert cuda_devices({} if chosen is None else {"CUDA_VISIBLE_DEVICES": chosen}, tmp_path) == found


def test_a_folder_must_leave_room_for_the_names_of_sockets() -> None:
    check_folder(Path("/" + "x" * 78))
    with pytest.raises(ValueError, match="is 1 bytes too long for unix sockets: set TMPDIR to a shorter one"):
        check_folder(Path("/" + "x" * 79))


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        pytest.param(agent_pb2.RestartMode(), {"EDRIVER_MODE": "restart", "HOROVOD_ELASTIC": None}, id="restart"),
        pytest.param(agent_pb2.RestartMode(), {"EDRIVER_MAX_RESTARTS": None}, id="any-number-of-restarts"),
        pytest.param(agent_pb2.RestartMode(max_restarts=0), {"EDRIVER_MAX_RESTARTS": "0"}, id="no-restart-allowed"),
        pytest.param(None, {"EDRIVER_MODE": None, "CUDA_VISIBLE_DEVICES": "5", "HOROVOD_ELASTIC": "1"}, id="elastic"),
    ],
)
def test_a_worker_in_restart_mode_finds_what_torchrun_leaves_it(
    mode: agent_pb2.RestartMode | None, expected: dict[str, str | None]
) -> None:
    settings = AgentSettings(run_id="r", host="h", agent_id=1, address="127.0.0.1", folder=Path("/s"))
    worker_settings = WorkerSettings(settings, {"CUDA_VISIBLE_DEVICES": "4,5"})
    worker_settings.take(agent_pb2.Welcome(restart_mode=mode))
    found = worker_settings.environment_of(agent_pb2.StartWorker(worker_id=3, slot=1))
    assert {name: found.get(name) for name in expected} == expected
    if mode is None:
        assert found.items() >= NCCL_DEFAULTS.items()
    else:
        assert not found.keys() & NCCL_DEFAULTS.keys()
        assert found["CUDA_VISIBLE_DEVICES"] == "4,5"
        assert (found["EDRIVER_ADDRESS"], found["OMP_NUM_THREADS"]) == ("127.0.0.1", "1")
        assert found["EDRIVER_IMPORTS"] == "/s/imports.1"
