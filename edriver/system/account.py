"""The account of this process."""

from __future__ import annotations

import getpass
import os


def account_name() -> str:
    """The name of this process's account; its number where it has no name, as in some containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
