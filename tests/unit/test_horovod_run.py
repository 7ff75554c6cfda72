"""`hvd.run` has the arguments of horovod.run, by their new and their old names."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from typing import Any

import pytest

import edriver
from edriver.calls.launch import HOST_FLAGS
from edriver.cli.run_flags import flags_parser
from edriver.driver.config import engine_flags


@pytest.mark.parametrize(
    ("given", "sizes", "flags"),
    [
        pytest.param({}, (1, None, None), [], id="one worker"),
        pytest.param({"num_proc": 2, "min_num_proc": 1, "max_num_proc": 4}, (2, 1, 4), [], id="new names"),
        pytest.param({"np": 2, "min_np": 1, "max_np": 4}, (2, 1, 4), [], id="old names"),
        pytest.param({"num_proc": 3, "np": 2}, (3, None, None), [], id="new name wins"),
        pytest.param({"disable_cache": True, "use_gloo": True}, (1, None, None), [], id="without effect"),
        pytest.param({"executable": sys.executable, "use_mpi": False}, (1, None, None), [], id="as it is anyway"),
        pytest.param({"network_interface": "eth0"}, (1, None, None), [], id="interface"),
        pytest.param({"network_interface": {"eth0"}}, (1, None, None), [], id="interfaces"),
        pytest.param(
            {"slots": 2, "reset_limit": 3, "start_timeout": 9},
            (1, None, None),
            ["--slots-per-host", "2", "--reset-limit", "3", "--start-timeout", "9"],
            id="flags",
        ),
        pytest.param(
            {"cooldown_range": (1, 2), "verbose": 2},
            (1, None, None),
            ["--blacklist-cooldown-range", "1", "2", "--verbose"],
            id="other flags",
        ),
    ],
)
def test_arguments(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], sizes: tuple[object, ...], flags: list[str]
) -> None:
    import edriver.horovod as hvd

    asked: dict[str, Any] = {}

    def launch(*_: object, **options: Any) -> list[int]:
        asked.update(options)
        return [7]

    monkeypatch.setattr("edriver.horovod.launching.launch", launch)
    assert hvd.run(len, ("x",), hosts="localhost:2", **given) == [7]
    assert (asked["np"], asked["min_np"], asked["max_np"], asked["hosts"]) == (*sizes, "localhost:2")
    assert asked["network_interface"] == ("eth0" if "network_interface" in given else None)
    assert asked["flags"] == flags
    assert flags_parser().parse_known_args(flags)[1] == []


def test_the_arguments_are_horovods_in_its_order() -> None:
    import edriver.horovod as hvd

    names = (
        "func args kwargs num_proc min_num_proc max_num_proc slots reset_limit cooldown_range hosts hostfile "
        "start_timeout ssh_port ssh_identity_file disable_cache output_filename verbose use_gloo use_mpi mpi_args "
        "network_interface executable np min_np max_np"
    )
    assert [*inspect.signature(hvd.run).parameters] == [*names.split(), "host_discovery_script"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        pytest.param({"use_mpi": True}, "edriver does not use MPI: leave out use_mpi", id="mpi"),
        pytest.param({"mpi_args": "--x"}, "leave out use_mpi and mpi_args", id="mpi-args"),
        pytest.param({"executable": "/opt/python"}, "leave out executable", id="executable"),
        pytest.param({"network_interface": "eth0,eth1"}, "takes one interface, and not eth0,eth1", id="interfaces"),
        pytest.param({"hosts": "a:1", "hostfile": "f"}, "-H and --hostfile both define the hosts", id="two-sources"),
    ],
)
def test_what_cannot_be_had_is_refused_by_name(given: dict[str, Any], message: str) -> None:
    import edriver.horovod as hvd

    with pytest.raises(ValueError, match=message):
        hvd.run(len, ("x",), **given)


@pytest.mark.parametrize(
    ("given", "flags", "here"),
    [
        pytest.param({"np": 2}, ["-np", "2"], True, id="this-machine"),
        pytest.param({"np": "auto"}, ["-np", "auto"], True, id="auto"),
        pytest.param({"np": 2, "hosts": "localhost:gpu"}, ["-np", "2", "-H", "localhost:gpu"], True, id="list"),
        pytest.param({"np": 2, "hostfile": "f"}, ["-np", "2", "--hostfile", "f"], False, id="hostfile"),
        pytest.param(
            {"np": 2, "host_discovery_script": "echo a | cat", "network_interface": "eth0"},
            ["-np", "2", "--host-discovery-script", "echo a | cat", "--network-interface", "eth0"],
            False,
            id="script",
        ),
        pytest.param({"np": 2, "flags": ["--slurm"]}, ["-np", "2", "--slurm"], False, id="flags"),
        pytest.param({"np": 2, "flags": ["--discovery=x"]}, ["-np", "2", "--discovery=x"], False, id="with-a-value"),
    ],
)
def test_where_the_workers_of_a_call_are(
    given: dict[str, Any], flags: list[str], here: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[list[str], bool]] = []

    def call_in_workers(_: bytes, words: Sequence[str], *, here: bool) -> list[int]:
        asked.append(([*words], here))
        return []

    monkeypatch.setattr("edriver.calls.launch.call_in_workers", call_in_workers)
    assert edriver.launch(len, ("x",), **given) == []
    assert asked == [(flags, here)]
    assert flags_parser().parse_known_args(flags)[1] == []


def test_flags_that_define_hosts_are_known_to_calls() -> None:
    by_name = {**engine_flags.HOST_FLAGS, **{engine.attribute: engine.flag for engine in engine_flags.ENGINES}}
    places = by_name.keys() - {"launcher", "broker"}
    words = {word for action in flags_parser()._actions if action.dest in places for word in action.option_strings}
    assert words == HOST_FLAGS
