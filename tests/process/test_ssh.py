"""Runs on several hosts: each a network namespace with a real sshd, reached by the user's own ssh configuration."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import sys
import sysconfig
from pathlib import Path

import pytest

from edriver.common.release import PROTOCOL
from tests.process.running import ROOT, SCRIPTS, Hosts, wait_for_exit
from tests.process.sites import Site, environment_of, parent_of, site, ssh_client

SITE_PACKAGES = Path(sysconfig.get_path("purelib"))
TRAIN = [sys.executable, str(SCRIPTS / "train.py")]

CUT_OFF = ("--driver-timeout", "8")
"""Seconds after which a host ends what it runs, if it cannot know what has become of the driver: 600 by default."""


def test_a_run_on_two_hosts(tmp_path: Path) -> None:
    with site(tmp_path) as there, there.running(["-np", "3", "-H", "host1:2,host2:1", *TRAIN], tmp_path) as run:
        assert run.end() == 0, run.text
        assert run.gone(), run.left_behind()
        assert re.search(r"rank 0 of 3 .*", run.text)


def test_workers_are_killed_and_hosts_come_and_go(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path, "host1:1", "host2:1")
    flags = ["-np", "2", "--min-np", "1", "--max-np", "3", "--host-discovery-script", str(hosts.script)]
    with site(tmp_path, 3) as there, there.running([*flags, *TRAIN], tmp_path, {"EPOCHS": "20000"}) as run:
        run.line("rank 1 passed step 5")
        first = run.pids()
        os.kill(first[1], signal.SIGKILL)
        run.line(r"rank 0 of 1 .* at step")
        run.line(r"rank 1 of 2 .* at step ([1-9]\d*)")  # the replacement
        hosts.are("host1:1", "host2:1", "host3:1")
        run.line("rank 2 of 3")
        hosts.are("host2:1", "host3:1")
        run.line(r"rank 1 of 2", after=next(i for i, line in enumerate(run.lines) if "rank 2 of 3" in line))
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130
        assert run.gone(), run.left_behind()


@pytest.mark.long
def test_a_host_whose_cable_is_put_back_begins_anew_and_may_be_cut_off_again(tmp_path: Path) -> None:
    flags = ["-np", "2", "--min-np", "1", "-H", "host1:1,host2:1", *CUT_OFF]
    with site(tmp_path) as there, there.running([*flags, *TRAIN], tmp_path, {"EPOCHS": "20000"}) as run:
        run.line("rank 1 passed step 5")
        (old,) = there.hosts[2].processes() & set(run.pids().values())
        there.hosts[2].cut()
        run.line(r"its agent has not answered for 5 s")
        run.line(r"rank 0 of 1 .* at step ([5-9]|\d\d)")
        assert wait_for_exit(old), "its agent has lost the driver, and should have ended it"
        there.hosts[2].heal()
        new = run.line(r"rank 1 of 2 pid (\d+) at step ([5-9]|\d\d)", after=len(run.lines))
        assert int(new[1]) != old
        there.hosts[2].cut()
        run.line(r"rank 0 of 1 .* at step \d\d", after=len(run.lines))
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130
        assert run.gone(), run.left_behind()


@pytest.mark.long
def test_an_agent_that_resumes_after_its_replacement_ends(tmp_path: Path) -> None:
    flags = ["-np", "2", "--min-np", "1", "-H", "host1:1,host2:1"]
    with site(tmp_path) as there, there.running([*flags, *TRAIN], tmp_path, {"EPOCHS": "20000"}) as run:
        run.line("rank 1 passed step 5")
        old = run.pids()[1]
        agent = int(Path(f"/proc/{old}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(agent, signal.SIGSTOP)
        run.line(r"its agent has not answered for 5 s")
        run.line(rf"rank 1 of 2 pid (?!{old} )\d+ at step")  # another process; the old one still runs, unreachable
        os.kill(agent, signal.SIGCONT)
        assert wait_for_exit(agent)
        assert wait_for_exit(old)
        run.line("rank 1 passed step", after=len(run.lines))
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130
        assert run.gone(), run.left_behind()


def test_an_agent_that_is_killed_leaves_nothing_behind(tmp_path: Path) -> None:
    flags = ["-np", "2", "--min-np", "1", "-H", "host1:1,host2:1"]
    with site(tmp_path) as there, there.running([*flags, *TRAIN], tmp_path, {"EPOCHS": "20000"}) as run:
        run.line("rank 1 passed step 5")
        worker = run.pids()[1]
        variables = environment_of(worker)
        host, tls_credentials = variables["EDRIVER_HOST"], Path(variables["EDRIVER_TLS_FOLDER"])
        assert (tls_credentials / "member.pem").exists()
        os.kill(parent_of(worker), signal.SIGKILL)
        run.line(f"host {host} is lost: its agent was killed by SIGKILL")
        run.line(r"rank 0 of 1 .* at step ([5-9]|\d\d)")
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130
        assert run.gone(), run.left_behind()
        assert not tls_credentials.parent.exists()


def test_a_run_goes_on_when_the_connection_of_ssh_breaks(tmp_path: Path) -> None:
    flags = ["-np", "2", "--min-np", "1", "-H", "host1:1,host2:1"]
    with site(tmp_path) as there, there.running([*flags, *TRAIN], tmp_path, {"EPOCHS": "20000", "PAUSE": "0.1"}) as run:
        run.line("rank 1 passed step 5")
        os.kill(ssh_client(run, "host2"), signal.SIGKILL)
        run.line("host host2: the ssh connection has ended; its agent continues without it")
        run.line("rank 1 passed step 15")
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130
        assert run.gone(), run.left_behind()


def test_nothing_secret_is_on_a_command_line(tmp_path: Path) -> None:
    environ = {"EPOCHS": "20000", "MY_SECRET": "swordfish"}
    with site(tmp_path, 1) as there, there.running(["-np", "1", "-H", "host1:1", *TRAIN], tmp_path, environ) as run:
        run.line("rank 0 passed step 5")
        commands = {text for entry in Path("/proc").glob("[0-9]*/cmdline") if (text := _read(entry))}
        assert any("edriver.agent.main" in text and "ssh" in text for text in commands)
        assert not any("swordfish" in text or "MY_SECRET" in text for text in commands)
        worker = Path(f"/proc/{run.pids()[0]}")
        assert b"MY_SECRET=swordfish" in (worker / "environ").read_bytes().split(b"\0")
        run.process.send_signal(signal.SIGINT)
        run.end()


def _read(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


@pytest.mark.parametrize(
    ("hidden", "sentence"),
    [
        pytest.param(
            Path(sys.executable).parent,
            "no Python can be run there at .*: edriver's Python must be at the same path on all hosts",
            id="python",
        ),
        pytest.param(SITE_PACKAGES, "has no edriver installed there: pip install edriver==", id="edriver"),
        pytest.param(None, "the workers' folder .* cannot be entered", id="the-scripts-folder"),
    ],
)
def test_a_host_that_lacks_something(tmp_path: Path, hidden: Path | None, sentence: str) -> None:
    work = tmp_path / "home" / "work"
    work.mkdir(parents=True)
    nowhere = tmp_path / "nowhere" if hidden == SITE_PACKAGES else ROOT
    with site(tmp_path, 1, edriver=nowhere, hidden=hidden or work.parent) as there:
        fails(there, work, sentence)


def test_a_host_whose_edriver_speaks_another_protocol(tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(ROOT / "edriver", other / "edriver", ignore=shutil.ignore_patterns("__pycache__"))
    release = other / "edriver" / "common" / "release.py"
    text = release.read_text().replace('"0.', '"99.').replace(f"PROTOCOL: Final = {PROTOCOL}", "PROTOCOL: Final = 0")
    release.write_text(text)
    with site(tmp_path, 1, edriver=other) as there:
        fails(there, tmp_path, r"its agent runs edriver 99\.\S+, whose protocol this driver does not speak: install 0")


def test_a_key_that_the_host_does_not_accept(tmp_path: Path) -> None:
    with site(tmp_path, 1) as there:
        there.ssh.identity.with_suffix(".pub").write_text("")
        fails(there, tmp_path, "it accepts none of this user's keys: make sure that `ssh host1 true` works")


def test_a_host_that_ssh_does_not_know(tmp_path: Path) -> None:
    with site(tmp_path, 1) as there:
        there.ssh.known_hosts.write_text("")
        fails(there, tmp_path, r"its host key is not known here: connect once manually \(ssh host1\)")


@pytest.mark.long
def test_the_port_and_the_key_can_be_given(tmp_path: Path) -> None:
    with site(tmp_path, 1) as there:
        fails(there, tmp_path, "no sshd listens there: --ssh-port", "--ssh-port", "2222")
        there.ssh.config.write_text(there.ssh.config.read_text().replace("IdentityFile", "CertificateFile"))
        fails(there, tmp_path, "it accepts none of this user's keys")
        flags = ["-np", "1", "-H", "host1:1", "--ssh-identity-file", str(there.ssh.identity)]
        with there.running([*flags, *TRAIN], tmp_path) as run:
            assert run.end() == 0, run.text


def test_a_host_behind_a_jump_host(tmp_path: Path) -> None:
    with site(tmp_path) as there:
        there.ssh.config.write_text(f"Host host2\n  ProxyJump host1\n{there.ssh.config.read_text()}")
        with there.running(["-np", "2", "-H", "host1:1,host2:1", *TRAIN], tmp_path, {"EPOCHS": "20000"}) as run:
            run.line("rank 1 passed step 5")
            assert any("-W" in command for command in there.processes().values()), "the jump host is not used"
            run.process.send_signal(signal.SIGINT)
            assert run.end() == 130
            assert run.gone(), run.left_behind()


def test_a_host_name_that_does_not_resolve(tmp_path: Path) -> None:
    with site(tmp_path, 1) as there:
        fails(there, tmp_path, "neither this machine nor the ssh configuration knows", host="no-such-host.invalid")


def test_hosts_are_reached_side_by_side(tmp_path: Path) -> None:
    """None connects before all have been dialled; and one that never answers does not delay the others."""
    names = [f"node{number}" for number in range(4)]
    with site(tmp_path, 1) as there:
        begun = (
            f"touch {tmp_path}/begun-%n; until [ $(ls {tmp_path}/begun-* | wc -l) = {len(names)} ]; do sleep 0.01; done"
        )
        connect = f"exec 3<>/dev/tcp/{there.hosts[1].address}/22; cat <&3 & cat >&3; kill $!"
        there.ssh.config.write_text(
            f"Host node*\n  HostKeyAlias {there.hosts[1].address}\n  ProxyCommand bash -c '{begun}; {connect}'\n"
            f"Host silent\n  ProxyCommand sleep 3600\n{there.ssh.config.read_text()}"
        )
        hosts = ",".join(f"{name}:1" for name in ["silent", *names])
        with there.running(["-np", "5", "-H", hosts, "sh", "-c", "echo up; exec sleep 3600"], tmp_path) as run:
            for name in names:
                run.line(rf"^\[{name}:0\]<stdout>:up$")
            run.process.send_signal(signal.SIGINT)
            assert run.end() == 130
        assert there.left() == []


def fails(there: Site, folder: Path, sentence: str, *flags: str, host: str = "host1") -> None:
    """See that a run on one host ends, and says this of the host."""
    args = ["-np", "1", "-H", f"{host}:1", "--start-timeout", "3", *flags, *TRAIN]
    with there.running(args, folder) as run:
        assert run.end() == 1
        assert re.search(f"host {host} is not used: .*{sentence}", run.text), run.text
        assert run.gone(), run.left_behind()


@pytest.mark.long
def test_slots_are_counted_on_each_host(tmp_path: Path) -> None:
    cores = len(os.sched_getaffinity(0))
    command = ["--no-python", "sh", "-c", "echo rank $RANK of $WORLD_SIZE"]
    with site(tmp_path) as there, there.running(["-np", "auto", "-H", "host1:1,host2:cpu", *command], tmp_path) as run:
        run.line(rf"run \w+: {cores + 1} workers of")
        assert run.end() == 0, run.text
        assert f"rank {cores} of {cores + 1}" in run.text
        assert run.gone(), run.left_behind()


def test_a_host_that_cannot_be_counted_is_named(tmp_path: Path) -> None:
    with site(tmp_path) as there, there.running(["-np", "auto", "-H", "host1:1,host9:auto", *TRAIN], tmp_path) as run:
        assert run.end() == 2, run.text
        assert "host host9 is not used: neither this machine nor the ssh configuration knows its name" in run.text
