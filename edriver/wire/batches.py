"""Messages of a control stream that wait at the same time are sent as one: gRPC takes as long for each as for what is
in it. When a round of thousands ends, each host has eight to send.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeVar

MAX_BATCH: Final = 8
"""Messages that are sent as one, at most: with the longest texts they are a megabyte together."""

Kind = TypeVar("Kind", bound=Any)


def batched(first: Kind, others: Sequence[Kind]) -> Kind:
    """One message (ConnectRequest, ConnectResponse) with others that follow it; these stay as they are."""
    if not others:
        return first
    envelope = type(first)()
    envelope.CopyFrom(first)
    envelope.more.extend(others)
    return envelope  # type: ignore[no-any-return]


def parts_of(message: Kind) -> Iterable[Kind]:
    """The messages that were sent as this one, in order."""
    yield message
    yield from message.more
