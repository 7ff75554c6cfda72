"""Why a program could not be started, as text for the person who named it."""

from __future__ import annotations

import errno
import os
import shlex
from pathlib import Path


def start_failure(program: str, error: OSError, wanted: str) -> str:
    """Why a program could not be started, and what to do. Looks at the file: errno says too little.

    Args:
        program: its path, or a name that was looked up on PATH.
        error: what came of the attempt.
        wanted: what a path is asked for, where there is no file.
    """
    exists = os.access(program, os.F_OK)
    if error.errno == errno.ENOENT and not exists:
        where = "there is no such file" if "/" in program else "there is no such file here, and no such command on PATH"
        return f"{where}: give the path of {wanted}"
    if error.errno == errno.ENOENT:
        return f"its interpreter does not exist; its first line is {_first_line(program)}: correct that line"
    if exists and Path(program).is_dir():
        return "is a directory: give the path of an executable file"
    if error.errno == errno.EACCES and exists and not os.access(program, os.X_OK):
        return f"is not executable: chmod +x {shlex.quote(program)}"
    if error.errno == errno.EACCES:
        return (
            "may not be executed: its directories, its interpreter (first line) or its file system (noexec) "
            "do not allow it"
        )
    if error.errno == errno.ENOEXEC:
        return (
            "is neither a program for this machine nor a script with an interpreter: "
            "make its first line #!/bin/sh or #!/usr/bin/env python3"
        )
    return f"cannot be started: {error.strerror or error}"


def _first_line(program: str) -> str:
    """A file's first line for a message, quoted, so that a Windows line end shows as \\r."""
    try:
        with Path(program).open("rb") as file:
            return repr(file.readline(128).rstrip(b"\n"))[1:]
    except OSError:
        return "unreadable"
