"""The report and the exit code of `edriver doctor`."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edriver.commands import doctor, host_probe
from edriver.commands.checkup import (
    FAILED,
    NOTE,
    OK,
    TESTED_TORCH,
    HostFindings,
    exit_code,
    host_items,
    local_items,
    plain,
    rendered,
)
from edriver.commands.doctor import examined, is_here
from edriver.system.ssh_client import SshOptions

VERSION = "1.2.3"
FINDING = {
    "name": "severing",
    "relies": "freeing collectives",
    "trouble": "",
    "fallback": "A timeout is left.",
}
FOUND: dict[str, Any] = {
    "versions": {"python": "3.12.1", "torch": "2.13.0", "grpcio": "1.80", "protobuf": "6.33", "gpus": [], "nccl": ""},
    "findings": [FINDING],
    "no_filters": "",
}
HOST = HostFindings(
    name="a",
    trouble="",
    introduction={"python": "3.12.1", "edriver": VERSION, "descriptors": 4096, "address": "10.0.0.2", "port": 7},
    clock=0.01,
    uncertain=0.002,
    reaches_us={"10.0.0.1": "timed out", "10.0.1.1": ""},
    reached_by_us="",
    reaches={"b": ""},
)


def test_a_machine_without_filters_says_what_follows_and_passes() -> None:
    items = list(
        local_items(VERSION, {**FOUND, "no_filters": "TCP sockets get no filters: Operation not permitted"}, 4096)
    )
    (item,) = (item for item in items if item.text.startswith("filters: "))
    assert item.state == NOTE
    assert item.text.startswith("filters: TCP sockets get no filters: Operation not permitted. A process that races")
    assert exit_code(items) == 0


def test_where_all_holds_the_command_ends_with_0() -> None:
    items = [*local_items(VERSION, FOUND, 4096), *host_items(HOST, VERSION, "/python", we_take_part=True)]
    assert exit_code(items) == 0
    assert {item.state for item in items} == {OK, NOTE}
    text = rendered(items)
    assert "ok      edriver 1.2.3, python 3.12.1, torch 2.13.0, grpcio 1.80, protobuf 6.33" in text
    assert "ok      it reaches this machine at 10.0.1.1" in text
    assert text.endswith("all required checks pass")
    assert plain(items)["ok"] is True


@pytest.mark.parametrize(
    ("version", "noted"),
    [("2.11.0", False), ("2.15.1+cu132", False), ("2.10.1+cpu", True), ("2.16.0a0+git1", True), ("3.11.0", True)],
)
def test_a_torch_that_edriver_is_not_tested_with_is_noted_and_passes(version: str, noted: bool) -> None:
    items = list(local_items(VERSION, {**FOUND, "versions": {**FOUND["versions"], "torch": version}}, 4096))
    notes = [item.text for item in items if item.state == NOTE and item.text.startswith("torch ")]
    expected = f"torch {version}: edriver is tested with torch 2.11 to 2.15. A check below fails if "
    assert [note.startswith(expected) for note in notes if "GPU" not in note] == [True] * noted
    assert exit_code(items) == 0


def test_the_torch_that_edriver_is_tested_with_is_the_one_that_it_asks_for() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    (asked,) = (one for one in project["dependencies"] if one.startswith("torch"))
    (oldest, newest) = TESTED_TORCH
    assert asked == f"torch>={oldest[0]}.{oldest[1]},<{newest[0]}.{newest[1] + 1}"


def test_what_torch_prints_before_the_checks_result_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "talkative.py").write_text(
        "print('[Gloo] Rank 0 is connected'); print('{\"trouble\": \"none\"}', end='')"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert doctor._printed_by(["talkative"]) == {"trouble": "none"}


@pytest.mark.parametrize(
    ("found", "text"),
    [
        pytest.param(
            {"trouble": "no torch"}, "torch could not be checked, so no worker would start: no torch", id="torch"
        ),
        pytest.param(
            {**FOUND, "findings": [{**FINDING, "trouble": "no device is found"}]},
            "severing: freeing collectives does not work: no device is found. A timeout is left.",
            id="a-check",
        ),
    ],
)
def test_findings_that_fail_the_check(found: dict[str, Any], text: str) -> None:
    items = list(local_items(VERSION, found, 4096))
    assert [item.text for item in items if item.state == FAILED] == [text]
    assert exit_code(items) == 1
    assert rendered(items).endswith("1 check failed")


def test_too_few_open_files_fail_and_no_limit_is_fine() -> None:
    assert exit_code(list(local_items(VERSION, FOUND, 32))) == 1
    assert exit_code(list(local_items(VERSION, FOUND, -1))) == 0


@pytest.mark.parametrize(
    ("host", "state", "text"),
    [
        pytest.param(replace(HOST, trouble="no key"), FAILED, "no key", id="ssh"),
        pytest.param(
            replace(HOST, introduction={**HOST.introduction, "edriver": ""}), FAILED, "pip install edriver==", id="none"
        ),
        pytest.param(
            replace(HOST, introduction={**HOST.introduction, "edriver": "9"}),
            FAILED,
            "it has edriver 9",
            id="another",
        ),
        pytest.param(replace(HOST, clock=-90000.0), FAILED, "its clock is 90,000 s behind", id="clock"),
        pytest.param(replace(HOST, clock=7.5), NOTE, "its clock is 7.5 s ahead", id="clock-a-little"),
        pytest.param(replace(HOST, reaches_us={"x": "refused"}), FAILED, "could not dial the driver", id="driver"),
        pytest.param(replace(HOST, reached_by_us="refused"), FAILED, "cannot train together", id="from-here"),
        pytest.param(replace(HOST, reaches={"b": "refused"}), FAILED, "a port of host b (refused)", id="other-host"),
    ],
)
def test_what_is_wrong_with_a_host(host: HostFindings, state: str, text: str) -> None:
    wrong = [item for item in host_items(host, VERSION, "/python", we_take_part=True) if item.state != OK]
    assert [item.state for item in wrong] == [state]
    assert text in wrong[0].text


def test_a_machine_without_workers_need_not_reach_them() -> None:
    items = list(host_items(replace(HOST, reached_by_us="refused"), VERSION, "/python", we_take_part=False))
    assert exit_code(items) == 0
    assert NOTE in [item.state for item in items]


def test_a_port_where_the_probe_listens_is_reached_and_another_is_not() -> None:
    port = host_probe.listen("127.0.0.1")
    assert host_probe.dial_all([("127.0.0.1", port), ("127.0.0.1", 1)]) == ["", "Connection refused"]
    assert is_here("127.0.0.1")
    assert not is_here("192.0.2.1")


def test_a_host_is_asked_through_a_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text(
        "#!/bin/sh\n"
        'case "$*" in *silent*) echo "ssh: connect to host silent: Connection refused" >&2; exit 255;; esac\n'
        "export SSH_CONNECTION='127.0.0.1 1 127.0.0.1 22'\n"
        'for last; do :; done; exec sh -c "$last"\n'
    )
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("PYTHONPATH", str(Path(host_probe.__file__).parents[2]))
    here, silent = examined(["here", "silent"], SshOptions(), host_probe.listen(""))
    assert here.trouble == ""
    assert here.introduction["python"] == sys.version.split()[0]
    assert here.introduction["edriver"]
    assert here.reaches_us["127.0.0.1"] == ""
    assert here.reached_by_us == ""
    assert here.reaches == {}
    assert abs(here.clock) <= here.uncertain
    assert silent.trouble.startswith("no sshd listens there")


def test_the_command_does_not_import_torch() -> None:
    program = "import sys, edriver.commands.doctor; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0
