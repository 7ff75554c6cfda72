"""Attackers: functions of a test that run elsewhere, as another account of this machine or on a host of their own.

A function travels as its source. It imports what it needs itself, from the standard library alone, takes and returns
what JSON can hold, and sees nothing of the module that it stands in.
"""

from __future__ import annotations

import functools
import inspect
import json
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.linked_hosts import LinkedHost, linked_hosts
from tests.needs import NAMESPACES, OTHERS_PYTHON, ROOT_USER, SSHD, lack, require
from tests.process.sites import Site
from tests.ssh_hosts import ssh_hosts

OTHER_ACCOUNT = 61_234
"""The number of an account, and of its group, that owns nothing. It needs no entry in /etc/passwd, so none is made."""

BOUND = 300.0


@contextmanager
def started(
    attack: Callable[..., Any], *args: Any, account: int | None = None, through: Sequence[str] = ()
) -> Iterator[subprocess.Popen[str]]:
    """An attack that goes on beside the test, and is killed at the end if it has not ended.

    Args:
        attack: the function; what it prints can be read from the process.
        args: its arguments.
        account: the account that runs it; None: this one.
        through: the command that runs it.
    """
    source = textwrap.dedent(inspect.getsource(attack))
    program = f"from __future__ import annotations\nimport json, sys\n{source}\n"
    program += f"print(json.dumps({attack.__name__}(*json.loads(sys.argv[1]))), flush=True)"
    process = subprocess.Popen(
        [*through, python_for(account), "-I", "-c", program, json.dumps(args)],
        user=account,
        group=account,
        extra_groups=None if account is None else [],
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def result_of(attack: subprocess.Popen[str]) -> Any:
    """What an attack has returned, once it has."""
    message, _ = attack.communicate(timeout=BOUND)
    assert attack.returncode == 0, f"the attack itself failed with {attack.returncode}"
    return json.loads(message.splitlines()[-1])


def as_other_account(attack: Callable[..., Any], *args: Any) -> Any:
    """Call a function as another account of this machine, which takes root; returns what it returns."""
    require(ROOT_USER)
    with started(attack, *args, account=OTHER_ACCOUNT) as process:
        return result_of(process)


def on_host(host: LinkedHost, attack: Callable[..., Any], *args: Any) -> Any:
    """Call a function on a host of its own; returns what it returns."""
    with started(attack, *args, through=["ip", "netns", "exec", host.namespace]) as process:
        return result_of(process)


@functools.cache
def python_for(account: int | None) -> str:
    """A Python that this account may run: ours may lie in a folder that only its owner can enter."""
    if account is None:
        return sys.executable
    for program in (sys.executable, str(Path(sys.executable).resolve()), "/usr/bin/python3", "/usr/local/bin/python3"):
        try:
            subprocess.run([program, "-I", "-c", ""], user=account, group=account, cwd="/", check=True, timeout=60)
        except (OSError, subprocess.CalledProcessError):
            continue
        return program
    return lack(OTHERS_PYTHON)


@contextmanager
def site_with_a_stranger(folder: Path, count: int = 1) -> Iterator[tuple[Site, LinkedHost]]:
    """As `site` (the driver's host, and so many with an sshd), and one more host that is no part of the run."""
    require(NAMESPACES, SSHD)
    with linked_hosts(2 + count) as hosts, ssh_hosts(hosts[1:-1], folder) as ssh:
        yield Site(hosts[:-1], ssh), hosts[-1]
