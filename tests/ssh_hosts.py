"""Hosts with a real sshd, each in a network namespace of its own; and an ssh that is configured for them.

It takes root, iproute2 and Debian's openssh-server.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shlex
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.linked_hosts import LinkedHost, end_all_in
from tests.needs import SSHD, require
from tests.session_guard import marks

ROOT = Path(__file__).parents[1]
BOUND = 120.0


@dataclass(frozen=True, slots=True)
class SshHosts:
    """What a test needs to reach them.

    Attributes:
        path: a PATH in which `ssh` has the configuration of a user who knows all hosts, as host1, host2, ...
        config: that configuration,
        identity: the user's key,
        known_hosts: and the hosts' keys.
        servers: the processes of sshd, by address.
        temporary: a folder with one for the temporary files of each host, host1, host2, ..., and one called host0.
    """

    path: str
    config: Path
    identity: Path
    known_hosts: Path
    servers: dict[str, subprocess.Popen[str]]
    temporary: Path


@contextlib.contextmanager
def ssh_hosts(
    hosts: list[LinkedHost], folder: Path, edriver: Path = ROOT, hidden: Path | None = None
) -> Iterator[SshHosts]:
    """Start an sshd on each host.

    Args:
        hosts: the hosts.
        folder: for keys and configurations.
        edriver: the folder in which Python finds edriver there.
        hidden: a folder that is empty there.
    """
    require(SSHD)
    identity, known_hosts, config = folder / "id", folder / "known_hosts", folder / "ssh_config"
    _make_key(identity)
    Path("/run/sshd").mkdir(exist_ok=True)  # where sshd keeps its unprivileged half
    servers: dict[str, subprocess.Popen[str]] = {}
    sections, keys = [], []
    temporary = Path(tempfile.mkdtemp(prefix="ed-", dir="/tmp"))  # sockets want short paths
    (temporary / "host0").mkdir()
    try:
        for number, host in enumerate(hosts, start=1):
            place = folder / f"host{number}"
            place.mkdir()
            (temporary / place.name).mkdir()
            _make_key(place / "key")
            servers[host.address] = _start_sshd(host, place, identity, edriver, hidden, temporary / place.name)
            keys.append(f"{host.address} {(place / 'key.pub').read_text()}")
            sections.append(f"Host host{number}\n  HostName {host.address}\n")
        known_hosts.write_text("".join(keys))
        config.write_text(
            "".join(sections) + f'Host *\n  UserKnownHostsFile "{known_hosts}"\n  IdentityFile "{identity}"\n'
        )
        wrapper = folder / "bin" / "ssh"
        wrapper.parent.mkdir()
        wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {shlex.quote(str(config))} "$@"\n')
        wrapper.chmod(0o755)
        yield SshHosts(f"{wrapper.parent}:{os.environ['PATH']}", config, identity, known_hosts, servers, temporary)
    finally:
        for host in hosts:
            end_all_in(host.namespace)
        for server in servers.values():
            server.wait(BOUND)
        shutil.rmtree(temporary)


def _make_key(path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True, timeout=BOUND)


def _start_sshd(
    host: LinkedHost, folder: Path, identity: Path, edriver: Path, hidden: Path | None, temporary: Path
) -> subprocess.Popen[str]:
    config = folder / "sshd_config"
    # SHLVL: bash sources the account's .bashrc, which may take long, in the first shell of a login alone.
    environ = {"PYTHONPATH": edriver, "TMPDIR": temporary, "SHLVL": 1, **marks()}
    config.write_text(
        f'ListenAddress {host.address}\nHostKey "{folder}/key"\nAuthorizedKeysFile "{identity}.pub"\n'
        "PidFile none\nUsePAM no\nStrictModes no\nPermitRootLogin yes\nPasswordAuthentication no\n"
        "SetEnv " + " ".join(f'"{name}={value}"' for name, value in environ.items()) + "\n"
    )
    # `ip netns exec` gives it mounts of its own.
    hide = f"mount -t tmpfs none {shlex.quote(str(hidden))} && " if hidden else ""
    # -D, not as a daemon: those of several hosts would reset each other's connections. It goes with this process,
    # however that ends: sshd writes its title over its environment, so session_guard.py does not find it.
    server = subprocess.Popen(
        [
            "setpriv",
            "--pdeathsig",
            "KILL",
            "ip",
            "netns",
            "exec",
            host.namespace,
            "sh",
            "-c",
            f"{hide}exec {shutil.which('sshd')} -D -e -f {shlex.quote(str(config))}",
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    _wait_for(server, "Server listening")
    threading.Thread(target=_drain, args=(server,), daemon=True).start()
    return server


def _drain(server: subprocess.Popen[str]) -> None:
    """Read what it says to the end: once the pipe is full, it would wait."""
    assert server.stderr is not None
    with server.stderr as message:
        message.read()


def _wait_for(server: subprocess.Popen[str], text: str) -> None:
    assert server.stderr is not None
    with selectors.DefaultSelector() as selector:
        selector.register(server.stderr, selectors.EVENT_READ)
        message = ""
        while text not in message:
            assert selector.select(BOUND), f"sshd says only: {message}"
            line = server.stderr.readline()
            assert line, f"sshd has ended: {message}"
            message += line
