"""Who steers a run, as its events name them."""

from __future__ import annotations

import getpass
import os
import socket


def own_name() -> str:
    """Return this process's user and machine, such as alice@login1."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
