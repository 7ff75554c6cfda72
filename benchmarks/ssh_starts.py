"""How long 64 starts over ssh take, when each connection is slow, and when one host never answers.

    python -m benchmarks.ssh_starts [--output docs/benchmarks/ssh.md]        prints one JSON object: seconds by name

One real sshd on loopback stands for all hosts: the configuration of ssh that is written for this leads a name of its
own to it for each. Instead of an agent that sshd starts a few lines of shell, which read the invitation and confirm it:
64 agents on this machine's processors would dominate what is measured, while real hosts have processors of their own.
The cost of the connections is the difference between runs that take turns: with a ProxyCommand that connects at once,
with one that waits a second first, and with one host whose ProxyCommand never answers.

Measured is from the start of `edriver` to the moment at which the last host that answers has its invitation: the
driver's own start, and for each host a client and a server of ssh that agree on keys. It takes bash and sshd.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.jobs import LOOK_SECONDS, ROOT, HarnessError, free_port
from benchmarks.processes import MARK, kill, kill_all
from benchmarks.report import machine

HOSTS, REPEATS, DELAY = 64, 3, 1.0
BOUND = 60.0
SSHD = Path("/usr/sbin/sshd")


@dataclass(frozen=True, slots=True)
class Way:
    """How hosts are reached.

    Attributes:
        name: of the figure.
        delay: seconds for which each connection waits.
        silent: whether there is one host more, which never answers.
    """

    name: str
    delay: float = 0.0
    silent: bool = False


def ways(hosts: int) -> tuple[Way, ...]:
    """At once, each a moment later, and with one that never answers."""
    return (
        Way(f"{hosts} hosts"),
        Way(f"{hosts} hosts, {DELAY:g} s before each connection", delay=DELAY),
        Way(f"{hosts - 1} hosts beside one that never answers", silent=True),
    )


def main() -> None:
    """Measure, taking turns, and print."""
    parser = argparse.ArgumentParser(description="agents that start over ssh, side by side")
    parser.add_argument("--hosts", type=int, default=HOSTS, help="default: %(default)s")
    parser.add_argument("--repeats", type=int, default=REPEATS, help="of each way (default: %(default)s)")
    parser.add_argument("--output", type=Path, metavar="FILE", help="also write a page")
    flags = parser.parse_args()
    found: dict[str, list[float]] = {way.name: [] for way in ways(flags.hosts)}
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="ed-") as name, sshd(Path(name), flags.hosts) as port:
        for _ in range(flags.repeats):
            for way in ways(flags.hosts):
                found[way.name].append(max(starts(way, flags.hosts, Path(name), port).values()))
    plain, slow, silent = (median(values) for values in found.values())
    differences = {"added by the wait": slow - plain, "added by the silent host": silent - plain}
    print(json.dumps({name: median(values) for name, values in found.items()} | differences))
    if flags.output:
        flags.output.write_text(page(found, differences, load))


@contextlib.contextmanager
def sshd(folder: Path, callers: int) -> Iterator[int]:
    """A server on loopback that lets so many in at a time, with the key `id` in the folder; answers its port."""
    for name in ("id", "host_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    port = free_port()
    (folder / "known_hosts").write_text(f"* {(folder / 'host_key.pub').read_text()}")
    config = folder / "sshd_config"
    config.write_text(
        f"ListenAddress 127.0.0.1\nPort {port}\nHostKey {folder}/host_key\nAuthorizedKeysFile {folder}/id.pub\n"
        f"PidFile none\nUsePAM no\nStrictModes no\nPermitRootLogin yes\nMaxStartups {2 * callers}\n"
        f"SetEnv HOME={folder}\n"
        f'ForceCommand cat > /dev/null; echo "$$ $SSH_ORIGINAL_COMMAND" >> {folder}/starts; exec sleep 3600\n'
    )
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # where it keeps its unprivileged half
    server = subprocess.Popen([SSHD, "-D", "-e", "-f", config], stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        while "Server listening" not in (line := server.stderr.readline()):
            if not line:
                raise HarnessError("sshd does not start", folder)
        draining = threading.Thread(target=server.stderr.read, daemon=True)  # else it would wait once the pipe is full
        draining.start()
        yield port
    finally:
        server.terminate()
        server.wait()


def starts(way: Way, hosts: int, folder: Path, port: int) -> dict[str, float]:
    """Start a run; when each host that answers had its invitation, in seconds from the driver's start.

    Raises:
        HarnessError: not all have, in time.
    """
    names = [f"node{number}" for number in range(hosts)]
    answering = names[:-1] if way.silent else names
    mark = secrets.token_hex(8)
    path = _ssh(folder, port, way, names[-1])
    message = folder / "starts"
    message.write_text("")
    began = time.monotonic()
    driver = subprocess.Popen(
        [sys.executable, "-m", "edriver", "-np", str(hosts), "-H", ",".join(f"{name}:1" for name in names), "true"],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PATH": path,
            "TMPDIR": str(folder),
            "XDG_STATE_HOME": str(folder),
            MARK: mark,
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return _wait_for(message, answering, began)
    finally:
        driver.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            driver.wait(BOUND)
        kill_all(mark)
        for pid in re.findall(r"^\d+", message.read_text(), re.MULTILINE):  # sshd leaves them
            kill(int(pid))


def _wait_for(message: Path, names: Sequence[str], began: float) -> dict[str, float]:
    found: dict[str, float] = {}
    while len(found) < len(names):
        for name in re.findall(r"--host (node\d+);", message.read_text()):
            found.setdefault(name, time.monotonic() - began)
        if time.monotonic() > began + BOUND:
            missing = ", ".join(name for name in names if name not in found)
            raise HarnessError(f"not started in {BOUND:g} s: {missing}", message.parent)
        time.sleep(LOOK_SECONDS)
    return found


def _ssh(folder: Path, port: int, way: Way, last: str) -> str:
    """Write an ssh whose configuration leads all names to the server; answers a PATH that begins with it."""
    connect = f"exec 3<>/dev/tcp/127.0.0.1/{port}; cat <&3 & cat >&3; kill $!"
    waiting = f"sleep {way.delay:g}; " if way.delay else ""
    silent = f"Host {last}\n  ProxyCommand sleep 3600\n" if way.silent else ""
    (folder / "ssh_config").write_text(
        f"{silent}Host node*\n  ProxyCommand bash -c '{waiting}{connect}'\n  IdentityFile {folder}/id\n"
        f"  UserKnownHostsFile {folder}/known_hosts\n"
    )
    wrapper = folder / "bin" / "ssh"
    wrapper.parent.mkdir(exist_ok=True)
    real = shutil.which("ssh")
    if real is None:
        raise HarnessError("there is no ssh here", folder)
    wrapper.write_text(f'#!/bin/sh\nexec {real} -F {folder}/ssh_config "$@"\n')
    wrapper.chmod(0o755)
    return f"{wrapper.parent}:{os.environ['PATH']}"


def page(found: dict[str, list[float]], differences: dict[str, float], load: float) -> str:
    """The page, in Markdown."""
    rows = [f"| {name} | {median(v):.1f} s | {min(v):.1f} to {max(v):.1f} s |\n" for name, v in found.items()]
    rows += [f"| {name} | {value:+.1f} s | |\n" for name, value in differences.items()]
    intro, _, rest = (__doc__ or "").partition("\n\n    python")
    explanation = rest.partition("\n\n")[2]
    repeats = len(next(iter(found.values())))
    return (
        "# Starts over ssh\n\n"
        "Written by `python -m benchmarks.ssh_starts --output docs/benchmarks/ssh.md`; run it again rather than edit "
        f"this page.\n\n- machine: {machine()}\n- date: {datetime.datetime.now(datetime.UTC).date()}\n"
        f"- load average before it: {load:.1f}\n- medians of {repeats} runs each, which took turns\n\n"
        f"{intro}\n\n| until the last host had its invitation | median | all |\n| --- | --- | --- |\n{''.join(rows)}\n"
        f"{explanation}"
    )


if __name__ == "__main__":
    main()
