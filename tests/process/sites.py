"""Runs on several hosts: each a network namespace, all but the driver's with a real sshd; and what is found there."""

from __future__ import annotations

import contextlib
import re
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.linked_hosts import IPV4, LinkedHost, linked_hosts
from tests.needs import NAMESPACES, SSHD, require
from tests.process.running import BOUND, ROOT, Run, running, wait_for_exit
from tests.ssh_hosts import SshHosts, ssh_hosts


@dataclass(frozen=True, slots=True)
class Site:
    """Hosts on one network, the first of which is the driver's; it has no sshd."""

    hosts: list[LinkedHost]
    ssh: SshHosts

    @contextlib.contextmanager
    def running(self, args: list[str], folder: Path, environ: dict[str, str] | None = None) -> Iterator[Run]:
        """A run whose driver is on the first host."""
        through = ["ip", "netns", "exec", self.hosts[0].namespace]
        ours = {"PATH": self.ssh.path, "TMPDIR": str(self.ssh.temporary / "host0")}
        with running(args, folder, {**ours, **(environ or {})}, through) as run:
            yield run

    def processes(self) -> dict[int, str]:
        """The command lines of all processes on the hosts, zombies and the servers of ssh aside."""
        networks = {Path(f"/var/run/netns/{host.namespace}").stat().st_ino for host in self.hosts}
        servers = {server.pid for server in self.ssh.servers.values()}
        found = {}
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if (
                    entry.name.isdigit()
                    and int(entry.name) not in servers
                    and (entry / "ns/net").stat().st_ino in networks
                    and (entry / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
                ):
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        return found

    def left(self, seconds: float = BOUND, spare: str = "nothing") -> list[str]:
        """What stays when all runs have ended: processes, files, listeners.

        Args:
            seconds: how long processes may take to end.
            spare: how the command line of processes begins that may stay.
        """

        def ours() -> dict[int, str]:
            return {pid: command for pid, command in self.processes().items() if not command.startswith(spare)}

        deadline = time.monotonic() + seconds
        while (there := ours()) and time.monotonic() < deadline:
            wait_for_exit(next(iter(there)), 1.0)
        files = [str(path) for path in self.ssh.temporary.rglob("*") if path.parent != self.ssh.temporary]
        return [*there.values(), *files, *self.sockets("--listening")]

    def sockets(self, *flags: str) -> list[str]:
        """What ss(8) prints, with these flags, of all TCP sockets on all hosts but those of ssh."""
        found = []
        for host in self.hosts:
            command = ["ip", "netns", "exec", host.namespace, "ss", "--no-header", "--numeric", "--tcp", *flags]
            lines = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout.splitlines()
            found += [line for line in lines if not re.search(r":22\s", f"{line} ")]
        return found


@contextlib.contextmanager
def site(
    folder: Path, count: int = 2, edriver: Path = ROOT, hidden: Path | None = None, prefix: str = IPV4
) -> Iterator[Site]:
    """So many hosts with an sshd, called host1, host2, ..., and the driver's. See linked_hosts and ssh_hosts."""
    require(NAMESPACES, SSHD)
    with linked_hosts(1 + count, prefix) as hosts, ssh_hosts(hosts[1:], folder, edriver, hidden) as ssh:
        yield Site(hosts, ssh)


def environment_of(pid: int) -> dict[str, str]:
    """What a process was started with."""
    entries = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    return dict(entry.partition("=")[::2] for entry in entries if entry)


def parent_of(pid: int) -> int:
    """A process's parent."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def ssh_client(run: Run, host: str) -> int:
    """The process that leads to a host."""
    commands = [re.match(rf"(\d+): \S*/ssh .* -- {host} ", text) for text in run.left_behind()]
    (client,) = filter(None, commands)
    return int(client[1])
