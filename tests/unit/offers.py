"""Candidates for a round and what they offer, in a word each."""

from __future__ import annotations

from edriver.model.ids import NO_VERSION, RoundId, Version
from edriver.model.plan import Candidate
from edriver.model.store_address import StoreAddress


def version(text: str) -> Version:
    """`"3:7"` is boundary 7 of round 1.3; `"-"` is what a newcomer offers."""
    if text == "-":
        return NO_VERSION
    n, boundaries = text.split(":")
    return Version(RoundId(1, int(n)), int(boundaries))


def candidates(text: str) -> list[Candidate]:
    """`"1@a=3:7 2@b=3:6>3:7 3@b=-"`: worker 1 on host a offers 3:7, worker 2 on host b 3:6, and is sealed to reach 3:7,
    worker 3 nothing. Slots count up on each host.
    """
    slots: dict[str, int] = {}
    found = []
    for item in text.split():
        who, offered = item.split("=")
        offer, _, sealed = offered.partition(">")
        worker_id, host = who.split("@")
        slots[host] = slots.get(host, -1) + 1
        store = StoreAddress(host, 7000 + int(worker_id))
        reached = version(sealed) if sealed else None
        found.append(Candidate(int(worker_id), host, slots[host], version(offer), store, sealed=reached))
    return found
