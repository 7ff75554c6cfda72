"""By which addresses hosts reach one another: IPv6, names that only ssh knows, one interface of several."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
from pathlib import Path

import pytest

from tests.linked_hosts import INTERFACE, IPV4, IPV6, link_again
from tests.process.running import SCRIPTS, Run
from tests.process.sites import Site, environment_of, site

TRAIN = [sys.executable, str(SCRIPTS / "train.py")]
FLAGS = ["-np", "2", "--min-np", "1"]


def survives_a_kill(run: Run) -> None:
    """Wait until both train, kill one, and wait until both train again, from where they had been."""
    run.line("rank 1 passed step 5")
    run.line("rank 0 passed step 5")
    after = len(run.lines)
    os.kill(run.pids()[1], signal.SIGKILL)
    run.line(r"rank 0 of 1 .* at step ([5-9]|\d\d)", after)
    run.line(r"rank 1 of 2 .* at step ([5-9]|\d\d)", after)


def ends(run: Run, there: Site) -> None:
    run.process.send_signal(signal.SIGINT)
    assert run.end() == 130
    assert [what for what in there.left() if "torchinductor" not in what] == []  # torch's own


@pytest.mark.parametrize("hosts", [f"[{IPV6}2]:1,[{IPV6}3]:1", "host1:1,host2:1"], ids=["addresses", "names"])
def test_hosts_that_have_ipv6_only(tmp_path: Path, hosts: str) -> None:
    with (
        site(tmp_path, prefix=IPV6) as there,
        there.running([*FLAGS, "-H", hosts, *TRAIN], tmp_path, {"EPOCHS": "20000"}) as run,
    ):
        survives_a_kill(run)
        assert environment_of(run.pids()[1])["EDRIVER_STORE"].startswith(IPV6)
        ends(run, there)


def test_names_that_only_the_drivers_ssh_knows(tmp_path: Path) -> None:
    with pytest.raises(socket.gaierror):
        socket.getaddrinfo("host1", 22)
    with (
        site(tmp_path) as there,
        there.running([*FLAGS, "-H", "host1:1,host2:1", *TRAIN], tmp_path, {"EPOCHS": "20000"}) as run,
    ):
        survives_a_kill(run)
        ends(run, there)


@pytest.mark.parametrize(("name", "other"), [(f"{IPV4}1", "host1"), ("localhost", f"{IPV4}2")])
def test_the_drivers_own_machine_among_others(tmp_path: Path, name: str, other: str) -> None:
    """Its workers are reached by its address on the way to the others, whatever its own name stands for."""
    with (
        site(tmp_path, 1) as there,
        there.running([*FLAGS, "-H", f"{name}:1,{other}:1", *TRAIN], tmp_path, {"EPOCHS": "20000"}) as run,
    ):
        survives_a_kill(run)
        ours = {environment_of(pid)["EDRIVER_HOST"]: environment_of(pid) for pid in run.pids().values()}
        assert ours[name]["EDRIVER_STORE"] == there.hosts[0].address
        assert ours[name]["GLOO_SOCKET_IFNAME"] == INTERFACE
        ends(run, there)


def test_one_interface_of_several(tmp_path: Path) -> None:
    """ssh goes by the first network; agents and workers by the second alone."""
    with site(tmp_path) as there:
        addresses = link_again(there.hosts, "fast", "10.214.0.")
        flags = [*FLAGS, "-H", "host1:1,host2:1", "--network-interface", "fast"]
        with there.running([*flags, *TRAIN], tmp_path, {"EPOCHS": "20000"}) as run:
            survives_a_kill(run)
            assert environment_of(run.pids()[1])["EDRIVER_STORE"] in addresses
            ends_of = [end for line in there.sockets() for end in re.findall(r"([\d.]+):\d+", line)]
            assert len(ends_of) > 4
            assert set(ends_of) <= {*addresses, "127.0.0.1"}, there.sockets()
            ends(run, there)


def test_a_host_without_the_interface_is_reported(tmp_path: Path) -> None:
    with site(tmp_path) as there:
        link_again(there.hosts[:2], "fast", "10.214.0.")
        flags = ["-np", "2", "-H", "host1:1,host2:1", "--network-interface", "fast", "--start-timeout", "5"]
        with there.running([*flags, *TRAIN], tmp_path) as run:
            run.line("host2.* no network interface 'fast' with an address exists here")
