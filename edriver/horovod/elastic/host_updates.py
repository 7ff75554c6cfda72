"""What news about hosts say."""

from __future__ import annotations

import enum


class HostUpdateResult(enum.IntFlag):
    """What changed, as `State.on_hosts_updated` receives it."""

    no_update = 0
    removed = 1
    added = 2
    mixed = removed | added
