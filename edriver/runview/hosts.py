"""The hosts of a run, as its page shows them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from edriver.runview.changes import Changes
from edriver.text.host_text import TROUBLED, host_words
from edriver.v1 import cause_pb2, status_pb2
from edriver.wire.conversion import epoch_seconds

MAX_GONE_HOSTS: Final = 2000
"""Hosts that are gone and of which it is remembered when they went, the latest."""


class Hosts(dict[str, status_pb2.HostStatus]):
    """Those there are, by name, and which of them have changed since when."""

    def __init__(self) -> None:
        """Begin without hosts."""
        super().__init__()
        self._changes: Changes[str] = Changes()

    def take(self, revision: int, message: status_pb2.HostStatus) -> None:
        """How a host stands now."""
        if self.get(message.name) == message:
            return
        self._changes.note(message.name, revision)
        if message.state != status_pb2.HOST_STATE_GONE and (message.slots or message.connected or message.workers):
            self[message.name] = message
        else:
            self.pop(message.name, None)
            gone = [name for name in self._changes if name not in self]
            if len(gone) > MAX_GONE_HOSTS:
                self._changes.forget(gone[0])

    def replace(self, revision: int, messages: Iterable[status_pb2.HostStatus]) -> None:
        """How all of them stand now: those that are not among these are gone."""
        by_name = {host.name: host for host in messages}
        for name in [name for name in self if name not in by_name]:
            self.take(revision, status_pb2.HostStatus(name=name))
        for host in by_name.values():
            self.take(revision, host)

    def since(self, revision: int) -> list[dict[str, Any]]:
        """Those that have changed since then, as they go to the page."""
        changes: list[dict[str, Any]] = []
        for name in self._changes.since(revision):
            host = self.get(name)
            if host is not None:
                changes.append(
                    {
                        "name": name,
                        "slots": host.slots,
                        "workers": host.workers,
                        "text": host_words(host),
                        "drained": _drained_part(host),
                        "until": epoch_seconds(host.quarantine_end_time),
                        "troubled": host.state in TROUBLED,
                        "since": epoch_seconds(host.discover_time),
                    }
                )
            elif revision:
                changes.append({"name": name, "slots": 0})
        return changes


def _drained_part(host: status_pb2.HostStatus) -> str:
    """The part of a host that is drained: "host" for all of it, "slots" for some slots, else empty."""
    kinds = {cause.kind for cause in host.obstacles}
    if cause_pb2.CAUSE_KIND_DRAINED in kinds:
        return "host"
    return "slots" if cause_pb2.CAUSE_KIND_SLOTS_DRAINED in kinds else ""
