"""`edriver doctor`: whether this machine, and the hosts that are named, have what a run needs."""

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from edriver.client.errors import RunError
from edriver.commands import host_probe
from edriver.commands.checkup import HostFindings, exit_code, host_items, local_items, plain, rendered
from edriver.common.release import VERSION
from edriver.system.own_addresses import is_own, own_addresses
from edriver.system.ssh_client import CONNECT_TIMEOUT, SSH_FAILURE_CODE, SshOptions, identity_error, own_failure
from edriver.text.command_parser import CommandParser
from edriver.text.phrases import exit_text

CHECKS_MODULE: Final = "edriver.worker.backend.checks"
"""Code for a separate process, as it imports torch."""

CHECKS_TIMEOUT: Final = 300.0
"""Seconds that it may take; importing torch from a cold disk takes most of them."""

ANSWER_TIMEOUT: Final = CONNECT_TIMEOUT + 30.0
"""Seconds that a host may take for an answer."""

MAX_CONCURRENT_HOSTS: Final = 64
"""How many hosts are asked at a time."""

CLOCK_READINGS: Final = 5
"""The one that was answered fastest counts."""


def parser() -> argparse.ArgumentParser:
    """The flags."""
    made = CommandParser(
        prog="edriver doctor",
        description="Checks what a run needs, on this machine and on other hosts. Exits with 0 if all required "
        "checks pass, else 1.",
    )
    made.add_argument(
        "--hosts", metavar="HOST,...", default="", help="other hosts to check, reached by ssh as a run reaches them"
    )
    made.add_argument("--port", type=int, default=0, metavar="PORT", help="the TCP port that the run will use (--port)")
    made.add_argument("-p", "--ssh-port", type=int, metavar="PORT", help="the port of sshd (default: as configured)")
    made.add_argument(
        "-i", "--ssh-identity-file", default="", metavar="FILE", help="the private key (default: as configured)"
    )
    made.add_argument(
        "--json", action="store_true", help="print one JSON object: ok, and items with subject, state and text"
    )
    return made


def doctor(arguments: Sequence[str]) -> tuple[str, int]:
    """Look, and put it into words; returns them and the exit code.

    Raises:
        RunError: the port cannot be had, or the key cannot be used.
    """
    flags = parser().parse_args(arguments)
    if flags.ssh_identity_file and (error := identity_error(flags.ssh_identity_file)):
        raise RunError(f"--ssh-identity-file: {error}")
    names = dict.fromkeys(name.partition(":")[0] for name in flags.hosts.split(",") if name)
    options = SshOptions(flags.ssh_port, flags.ssh_identity_file and str(Path(flags.ssh_identity_file).expanduser()))
    items = list(local_items(VERSION, findings(), resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    others = [name for name in names if not is_here(name)]
    if others:
        try:
            port = host_probe.listen("", flags.port)
        except OSError as error:
            raise RunError(f"port {flags.port} cannot be used: {error.strerror}") from None
        for host in examined(others, options, port):
            items += host_items(host, VERSION, sys.executable, we_take_part=len(others) < len(names))
    return json.dumps(plain(items), indent=2) if flags.json else rendered(items), exit_code(items)


def is_here(name: str) -> bool:
    """Whether a name is this machine's."""
    import socket

    try:
        found = socket.getaddrinfo(name, 0, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return any(is_own(family, where) for family, _, _, _, where in found)


# ---- this machine


def findings() -> dict[str, Any]:
    """What the checks of a worker's start have found, and one that takes two ranks; "trouble": why nothing."""
    found = _printed_by([CHECKS_MODULE])
    if "findings" in found:
        found["findings"].append(
            {
                "name": "freeing",
                "relies": "freeing a collective that hangs on a silent peer (tried with two processes)",
                "trouble": _trouble_with_freeing(),
                "fallback": "It ends with its worker, which is replaced when another one is free, or with the group's "
                "own timeout. Use a version of torch that edriver is tested with.",
            }
        )
    return found


def _trouble_with_freeing() -> str:
    silent = subprocess.Popen(
        [sys.executable, "-P", "-m", CHECKS_MODULE, "silent"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert silent.stdout is not None
        port = silent.stdout.readline().strip()
        return str(_printed_by([CHECKS_MODULE, "frees", port or "0"])["trouble"])
    finally:
        silent.kill()
        silent.communicate()


def _printed_by(arguments: Sequence[str]) -> dict[str, Any]:
    """The JSON object that a module of edriver prints last; {"trouble": why} where it prints none."""
    command = [sys.executable, "-P", "-m", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=CHECKS_TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        return {"trouble": f"`{shlex.join(command)}` has not ended within {CHECKS_TIMEOUT:g} s"}
    if done.returncode == 0:
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])  # older Gloo (torch 2.8) prints there, too
        return found
    last = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "it printed nothing")
    return {"trouble": f"`{shlex.join(command)}` {exit_text(done.returncode)}: {last}"}


# ---- other hosts


@dataclass(slots=True)
class _ProbedHost:
    """Another host, as long as it answers.

    Attributes:
        name: its name.
        process: ssh's.
        trouble: why it does not answer; empty: it does.
        introduction: what it has reported of itself.
    """

    name: str
    process: subprocess.Popen[str]
    trouble: str = ""
    introduction: dict[str, Any] = field(default_factory=dict)

    def ask(self, question: object = None) -> Any:
        """The answer to a question, or its introduction; None once the host has closed its output."""
        if self.trouble:
            return None
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        alarm = threading.Timer(ANSWER_TIMEOUT, self.process.kill)
        alarm.start()
        try:
            if question is not None:
                self.process.stdin.write(json.dumps(question) + "\n")
                self.process.stdin.flush()
            if line := self.process.stdout.readline():
                return json.loads(line)
        except (OSError, ValueError):  # it is gone, or its shell prints something else
            self.process.kill()
        finally:
            alarm.cancel()
        self.trouble = self._why()
        return None

    def _why(self) -> str:
        _, text = self.process.communicate()
        stderr_lines, code = text.splitlines(), self.process.returncode
        last = next((line for line in reversed(stderr_lines) if line.strip()), "")
        if code == SSH_FAILURE_CODE:
            return own_failure(self.name, stderr_lines)
        if code < 0:
            return f"no answer within {ANSWER_TIMEOUT:g} s, or not in JSON: `ssh {self.name} true` should print nothing"
        if code in (126, 127):
            path = sys.executable
            return (
                f"no Python can be run there at {path}: edriver's Python must be at the same path on all hosts ({last})"
            )
        return f"Python there {exit_text(code)}: {last}"


def examined(names: Sequence[str], options: SshOptions, port: int) -> list[HostFindings]:
    """What is found of other hosts, and between them.

    Args:
        names: the hosts.
        options: how ssh is called.
        port: one at which this machine answers (host_probe.listen).
    """
    source = Path(host_probe.__file__).read_text(encoding="utf-8")
    command = shlex.join([sys.executable, "-P", "-c", source])
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(MAX_CONCURRENT_HOSTS) as threads:
        probes = [stack.enter_context(_probed_host(name, options.command(name, command))) for name in names]
        for probe, introduction in zip(probes, threads.map(_ProbedHost.ask, probes), strict=True):
            probe.introduction = introduction or {}
        return list(threads.map(lambda probe: _examined(probe, probes, port), probes))


@contextlib.contextmanager
def _probed_host(name: str, command: Sequence[str]) -> Iterator[_ProbedHost]:
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as process:
        try:
            yield _ProbedHost(name, process)
        finally:
            with contextlib.suppress(OSError):
                if process.stdin is not None:
                    process.stdin.close()  # its last question has been answered: it ends
            alarm = threading.Timer(ANSWER_TIMEOUT, process.kill)
            alarm.start()
            process.wait()
            alarm.cancel()


def _examined(probe: _ProbedHost, probes: Sequence[_ProbedHost], port: int) -> HostFindings:
    clock, uncertain = _clock(probe)
    ours = list(dict.fromkeys(filter(None, (probe.introduction.get("caller"), *own_addresses()))))
    near = [other for other in probes if other is not probe and other.introduction]
    places = [(address, port) for address in ours] + [(o.introduction["address"], o.introduction["port"]) for o in near]
    answers = probe.ask({"dial": places}) or []
    host = HostFindings(
        name=probe.name,
        trouble=probe.trouble,
        introduction=probe.introduction,
        clock=clock,
        uncertain=uncertain,
        reaches_us=dict(zip(ours, answers, strict=False)),
        reached_by_us="",
        reaches={other.name: answer for other, answer in zip(near, answers[len(ours) :], strict=False)},
    )
    if host.trouble:
        return host
    return replace(host, reached_by_us=host_probe.dial(probe.introduction["address"], probe.introduction["port"]))


def _clock(probe: _ProbedHost) -> tuple[float, float]:
    """By how many seconds its clock is ahead, and how uncertain that is."""
    best = (0.0, float("inf"))
    for _ in range(CLOCK_READINGS):
        asked = time.time()
        there = probe.ask({"time": True})
        answered = time.time()
        if there is not None and (answered - asked) / 2 < best[1]:
            best = (there - (asked + answered) / 2, (answered - asked) / 2)
    return best
