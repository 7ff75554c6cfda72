"""OpenSSH's client: how it is called, and what its errors mean to an operator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

CONNECT_TIMEOUT: Final = 15
"""Seconds that ssh may take to reach a host."""

SSH_FAILURE_CODE: Final = 255
"""The exit code of ssh if it failed itself, or lost the connection."""

_SSH_OPTIONS: Final = (
    "BatchMode=yes",  # ssh cannot ask for a password here
    "LogLevel=ERROR",  # banners are not errors
    f"ConnectTimeout={CONNECT_TIMEOUT}",
    "ControlMaster=no",  # a connection for others to use would stay when the run is over
    "RemoteCommand=none",  # there is one already
)


@dataclass(frozen=True, slots=True)
class SshOptions:
    """The operator's ssh options; everything else is in the user's own configuration.

    Attributes:
        port: on which port sshd listens, on all hosts; None: as configured.
        identity_file: the private key; empty: as configured.
    """

    port: int | None = None
    identity_file: str = ""

    def command(self, host: str, remote: str) -> list[str]:
        """The command that runs a shell's command line on a host."""
        port = [] if self.port is None else ["-p", str(self.port)]
        identity = ["-i", self.identity_file, "-o", "IdentitiesOnly=yes"] if self.identity_file else []
        ours = [word for option in _SSH_OPTIONS for word in ("-o", option)]
        return ["ssh", *ours, "-T", "-x", "-a", *port, *identity, "--", host, remote]


def own_failure(host: str, stderr_lines: Sequence[str]) -> str:
    """Why ssh failed, and what to do about it.

    Args:
        host: the host.
        stderr_lines: its last lines on standard error.
    """
    text = "\n".join(stderr_lines)
    last = next((line for line in reversed(stderr_lines) if line.strip()), "")
    for sign, sentence in _ERROR_HINTS.items():
        if sign in text:
            return f"{sentence.format(host=host)} (ssh: {last.removeprefix('ssh: ')})"
    return f"ssh to it failed: {last or 'it gave no reason'}"


_ERROR_HINTS: Final = {
    "Permission denied": (
        "it accepts none of this user's keys: make sure that `ssh {host} true` works without a prompt, or give "
        "--ssh-identity-file"
    ),
    "REMOTE HOST IDENTIFICATION HAS CHANGED": (
        "its host key is not the one in known_hosts: if that is right, ssh-keygen -R {host}, then connect once manually"
    ),
    "Host key verification failed": (
        "its host key is not known here: connect once manually (ssh {host}), or add it to known_hosts"
    ),
    "Could not resolve hostname": "neither this machine nor the ssh configuration knows its name",
    "Connection refused": "no sshd listens there: --ssh-port or the ssh configuration may name another port",
    "Too many authentication failures": "its sshd was offered too many keys: give --ssh-identity-file",
}
"""Messages of ssh (ssh(1), OpenSSH's sources), and what an operator can do about them."""


def identity_error(name: str) -> str:
    """What is wrong with an identity file; empty: nothing."""
    path = Path(name).expanduser()
    if not path.is_file():
        return f"there is no file {name!r}"
    if path.stat().st_mode & 0o077:
        return f"{name!r} can be read by others, and ssh then ignores it: chmod 600 it"
    return ""
