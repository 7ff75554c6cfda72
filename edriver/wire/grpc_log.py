"""What gRPC's core writes to standard error, past Python's logging: nothing.

At its own default level, ERROR, it writes what strangers send: the server name of each TLS handshake, for instance,
with newlines and control sequences. What matters of its errors comes as exceptions, and is logged by those who meet
them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from typing import Final

LEVEL_VARIABLE: Final = "GRPC_VERBOSITY"

_ASKED_FOR: Final = ("DEBUG", "INFO")
"""Levels above gRPC's own default: the user wants to see what it does."""

_OURS_VARIABLE: Final = "EDRIVER_GRPC_SILENCED"
"""Holds the user's level, where edriver has set another; empty: the user had set none."""


def silence_grpc(environ: MutableMapping[str, str] = os.environ) -> None:
    """Have gRPC's core write nothing, unless its user asks for more than usual. To be called before gRPC is imported.

    Args:
        environ: the environment of this process, and of those that it starts.
    """
    level = environ.get(LEVEL_VARIABLE, "")
    if level.upper() in _ASKED_FOR:
        environ.pop(_OURS_VARIABLE, None)  # of a process before this one
    elif level.upper() != "NONE":
        environ[_OURS_VARIABLE] = level
        environ[LEVEL_VARIABLE] = "NONE"


def with_users_level(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment for scripts, whose gRPC writes what its user wants."""
    found = dict(environ)
    level = found.pop(_OURS_VARIABLE, None)
    if level is not None:
        del found[LEVEL_VARIABLE]
    return {**found, LEVEL_VARIABLE: level} if level else found
