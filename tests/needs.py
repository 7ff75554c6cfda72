"""What tests need of a machine beside Python: how each thing is found, and where it comes from.

A test says what it needs by `@pytest.mark.needs(needs.TMUX)`, and a helper of several tests by `require(TMUX)`. Where
something is missing the test is skipped; where CI is set it fails, so that CI loses no tool unnoticed. A run ends with
a list of what was missing, and of how many tests were skipped for it.

As a program, `python tests/needs.py`, it prints Debian's packages of the programs that are missing, for
scripts/test_tools.sh. Nothing is installed then, so it is the functions that import more than the standard library.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import platform
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

if TYPE_CHECKING:
    import pytest

SFTP_SERVER: Final = "/usr/lib/openssh/sftp-server"
NPM_PACKAGES: Final = Path(__file__).resolve().parents[1] / ".venv/npm/node_modules"

_REASON: Final = "needs "
_AND: Final = " and "


@dataclass(frozen=True)
class Need:
    """Something that a machine may lack.

    Attributes:
        name: what it is called; no two are called the same.
        origin: how a machine gets it.
        programs: what has to be on the PATH, or at this path,
        packages: and Debian's packages with these programs.
        check: what has to hold beside.
        optional: CI may be without it, too.
    """

    name: str
    origin: str
    programs: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    check: Callable[[], bool] = lambda: True
    optional: bool = False

    def has_programs(self) -> bool:
        """Whether all its programs are here."""
        return all(map(shutil.which, self.programs))

    def is_met(self) -> bool:
        """Whether this machine has it."""
        return self.has_programs() and self.check()


def debian(name: str, *packages: str, programs: tuple[str, ...]) -> Need:
    """What comes in packages of Debian's."""
    return Need(name, f"Debian's {' and '.join(packages)}", programs, packages)


def python(name: str, origin: str) -> Need:
    """A package of Python's that only some targets of the Makefile install."""
    return Need(name, origin, check=lambda: importlib.util.find_spec(name) is not None, optional=True)


@functools.cache
def _makes_namespaces() -> bool:
    from tests.session_guard import namespace_prefix  # what is called so is deleted after the session, at the latest

    name = f"{namespace_prefix()}try"
    try:
        return _ip("netns", "add", name) and _ip("-n", name, "link", "add", "bridge", "type", "bridge")
    finally:
        _ip("netns", "delete", name)


def _ip(*arguments: str) -> bool:
    return subprocess.run(["ip", *arguments], capture_output=True, timeout=120, check=False).returncode == 0


def _has_filters() -> bool:
    from edriver.system import sockets

    return not sockets.no_filters()


def _has_gpu() -> bool:
    import torch
    from torch import distributed

    return distributed.is_nccl_available() and torch.cuda._device_count_nvml() > 0  # it does not touch the device


_PRIVILEGED: Final = "root, in a container with --privileged"

ROOT_USER = Need("root", "run the tests as root", check=lambda: os.geteuid() == 0)
NAMESPACES = Need(
    "network namespaces", f"{_PRIVILEGED}; Debian's iproute2", ("ip",), ("iproute2",), check=_makes_namespaces
)
FUSE = Need("/dev/fuse", _PRIVILEGED, check=lambda: os.access("/dev/fuse", os.W_OK))
FILTERS = Need("filters for TCP sockets", "root, on some kernels", check=_has_filters, optional=True)
CGROUPS = Need("cgroups with a limit of memory", f"{_PRIVILEGED}, on some kernels", optional=True)
AUTOGROUPS = Need("scheduling by session", "a kernel with CONFIG_SCHED_AUTOGROUP", optional=True)
IPV6 = Need("IPv6", "a kernel with IPv6", check=Path("/proc/net/if_inet6").exists, optional=True)
GLIBC = Need("glibc", "a Linux with glibc", check=lambda: platform.libc_ver()[0] == "glibc", optional=True)
GPU = Need("a GPU with NCCL", "an NVIDIA GPU, and a torch with CUDA", check=_has_gpu, optional=True)
OTHERS_PYTHON = Need("a Python that other accounts can run", "a Python outside of a private folder")

SSHD = debian("sshd", "openssh-server", "openssh-client", programs=("sshd", "ssh", "ssh-keygen"))
SSHFS = debian("sshfs", "sshfs", "openssh-sftp-server", programs=("sshfs", SFTP_SERVER))
CHROMIUM = debian("Chromium", "chromium", programs=("chromium",))
PROMETHEUS = debian("Prometheus", "prometheus", programs=("prometheus", "promtool"))
ETCD = debian("etcd", "etcd-server", programs=("etcd",))
TMUX = debian("tmux", "tmux", programs=("tmux",))
GIT = debian("git", "git", programs=("git",))
NPM = Need("npm packages", "Debian's npm, and a network", ("npm", "node"), ("npm",), check=NPM_PACKAGES.exists)

GRPCURL = Need("grpcurl", "https://github.com/fullstorydev/grpcurl", ("grpcurl",), optional=True)
GRPC_TOOLS = python("grpc_tools", "make test")
MKDOCS = python("mkdocs", "make test")
DATASETS = python("datasets", "make libraries")
MOTO = python("moto", "make s3")
RAY = python("ray", "make engines")
TORCHTITAN = python("torchtitan", "make torchtitan")
SLURM = Need("Slurm", "Debian's slurm-wlm and munge", ("munged", "slurmctld", "slurmd", "srun"), optional=True)

ALL: Final = tuple(value for value in list(globals().values()) if isinstance(value, Need))


def require(*needs: Need) -> None:
    """Skip this test where one of these is missing; fail it where CI is set."""
    __tracebackhide__ = True
    missing = [need for need in needs if not need.is_met()]
    if missing:
        lack(*missing)


def lack(*missing: Need) -> NoReturn:
    """As `require`, of what is known to be missing."""
    import pytest

    __tracebackhide__ = True
    reason = _REASON + _AND.join(need.name for need in missing)
    if os.environ.get("CI") and not all(need.optional for need in missing):
        pytest.fail(f"{reason}: {'; '.join(need.origin for need in missing)}")
    pytest.skip(reason)


def summary(reasons: Iterable[str]) -> list[str]:
    """What was missing, and what installs it.

    Args:
        reasons: why each test that was skipped was skipped.
    """
    named = {need.name: need for need in ALL}
    tests: Counter[str] = Counter()
    others = 0
    for reason in reasons:
        names = reason.partition(_REASON)[2].split(_AND)
        tests.update(name for name in names if name in named)
        others += names[0] not in named
    lines = [f"{count:6} without {name} ({named[name].origin})" for name, count in tests.most_common()]
    if others:
        lines.append(f"{others:6} for other reasons (pytest -rs lists them)")
    missing = [named[name] for name in tests]
    installed = [package for need in missing if not need.has_programs() for package in need.packages]
    if NPM in missing and NPM.has_programs():
        installed.append(NPM.name)
    if installed:
        lines.append(f"`make test-tools` installs {', '.join(installed)}.")
    return lines


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before any fixture is made."""
    for mark in item.iter_markers("needs"):
        require(*mark.args)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Of all processes of pytest-xdist: their reports come together here."""
    skipped = terminalreporter.stats.get("skipped", [])
    lines = summary(report.longrepr[2] for report in skipped if isinstance(report.longrepr, tuple))
    if lines:
        terminalreporter.section("skipped tests, by what is missing here")
        for line in lines:
            terminalreporter.line(line)


if __name__ == "__main__":
    for each in ALL:
        if not each.has_programs():
            print(*each.packages, sep="\n", end="\n" if each.packages else "")
