"""How many descriptors (open files, sockets, pipes) this process may have, and whether they are enough."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Final

MOST: Final = 1 << 20
"""The soft limit is not raised beyond this: some programs look at every descriptor that they could have, and a hard
limit may be a billion."""

FEWEST: Final = 64
"""With fewer, a driver or an agent does not get through its start: gRPC crashes for want of them, and says nothing."""

_OPEN: Final = Path("/proc/self/fd")


def raise_limit() -> None:
    """Raise this process's soft limit to its hard one; what it starts from now on inherits that.

    Raises:
        ValueError: the hard limit is too low for a driver or an agent.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    if hard != resource.RLIM_INFINITY and hard < FEWEST:
        raise ValueError(
            f"a process may have {hard} open files here, and edriver needs {FEWEST} at least: raise the limit "
            f"(ulimit -Hn {FEWEST}, or LimitNOFILE= of a systemd unit)"
        )


def check_room(needed: int, what: str) -> None:
    """See that this process may open so many more descriptors.

    Args:
        needed: how many.
        what: what they are needed for, to be followed by "needs".

    Raises:
        RuntimeError: they are too many.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return
    used = sum(1 for _ in _OPEN.iterdir())
    if used + needed > limit:
        raise RuntimeError(
            f"{what} needs {needed} more open files, and this process, which has {used}, may have {limit}: raise the "
            f"hard limit on its host to {used + needed} or more (ulimit -Hn, or LimitNOFILE= of a systemd unit)"
        )
