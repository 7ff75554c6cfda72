"""Which commit of a git repository a run is started from, for its records."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final, NamedTuple

GIT_TIMEOUT: Final = 5.0
"""Seconds that git may take for an answer; a repository on a file server that hangs has none."""


class SourceCommit(NamedTuple):
    """A commit.

    Attributes:
        commit: its hash.
        changed: whether files under version control differ from it.
    """

    commit: str
    changed: bool


def source_commit(folder: Path) -> SourceCommit | None:
    """The commit that is checked out where a folder is; None: it is in no repository, or git has no answer."""
    try:
        found = _git(folder, "rev-parse", "HEAD")
        if found.returncode:
            return None
        changed = _git(folder, "diff", "--no-ext-diff", "--no-textconv", "--quiet", "HEAD").returncode != 0
    except (OSError, subprocess.TimeoutExpired):  # there is no git, or it hangs
        return None
    return SourceCommit(found.stdout.decode(errors="replace").strip(), changed)


def _git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    # fsmonitor and hooks would be programs that the repository names; locks would disturb the user's own git.
    command = ["git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", *arguments]
    environ = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    return subprocess.run(
        command,
        cwd=folder,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=GIT_TIMEOUT,
        check=False,
    )
