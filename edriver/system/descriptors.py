"""This process's descriptors (open files, sockets, pipes): which are open, and whether it may have enough."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from typing import Final

MAX_SOFT_LIMIT: Final = 1 << 20
"""The soft limit is not raised beyond this: some programs look at every descriptor that they could have, and a hard
limit may be a billion."""

MIN_DESCRIPTORS: Final = 64
"""With fewer, a driver or an agent cannot start: gRPC crashes for lack of descriptors, without a message."""

_FD_FOLDER: Final = "/proc/self/fd"


def links() -> Iterator[tuple[int, str]]:
    """Each open descriptor with what it refers to according to the kernel, such as socket:[12345].

    Those that are closed meanwhile are left out.

    Raises:
        OSError: the process has no descriptor left.
    """
    for name in os.listdir(_FD_FOLDER):  # noqa: PTH208  many, and often: path objects take twice as long
        try:
            link = os.readlink(f"{_FD_FOLDER}/{name}")  # noqa: PTH115  the same
        except OSError:
            continue
        yield int(name), link


def raise_limit() -> None:
    """Raise this process's soft limit to its hard one; what it starts from now on inherits that.

    Raises:
        ValueError: the hard limit is too low for a driver or an agent.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_SOFT_LIMIT if hard == resource.RLIM_INFINITY else min(hard, MAX_SOFT_LIMIT)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    if hard != resource.RLIM_INFINITY and hard < MIN_DESCRIPTORS:
        raise ValueError(
            f"a process may have {hard} open files here, but edriver needs at least {MIN_DESCRIPTORS}: raise the limit "
            f"(ulimit -Hn {MIN_DESCRIPTORS}, or LimitNOFILE= of a systemd unit)"
        )


def check_room(needed: int, what: str) -> None:
    """Ensure that this process can open this many further descriptors.

    Args:
        needed: how many.
        what: what they are needed for, to be followed by "needs".

    Raises:
        RuntimeError: they are too many.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return
    used = len(os.listdir(_FD_FOLDER))  # noqa: PTH208  as above
    if used + needed > limit:
        raise RuntimeError(
            f"{what} needs {needed} more open files, but this process, which has {used}, may have only {limit}: raise "
            "the "
            f"hard limit on its host to {used + needed} or more (ulimit -Hn, or LimitNOFILE= of a systemd unit)"
        )
