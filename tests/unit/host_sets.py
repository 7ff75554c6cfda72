"""Sets of hosts, in a word."""

from __future__ import annotations

from edriver.model.hosts import Host, HostSet


def hosts(text: str) -> HostSet:
    """`"a:2 b:4"` as a HostSet."""
    pairs = (item.split(":") for item in text.split())
    return HostSet(tuple(Host(name, int(slots)) for name, slots in pairs))
