"""Who steers a run, as its events name them."""

from __future__ import annotations

import socket

from edriver.system.account import account_name


def own_name() -> str:
    """Return this process's user and machine, such as alice@login1."""
    return f"{account_name()}@{socket.gethostname()}"
