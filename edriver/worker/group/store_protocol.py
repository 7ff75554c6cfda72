"""The protocol between a store's client and server (store.py, store_server.py). Pure.

A request is its kind, a number, the lengths of key and value, then both; a reply is the request's number, the length of
the answer, and the answer. Several keys, or values, are a list in which each item follows its length. Nothing is ever
unpickled.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final

REQUEST_FORMAT: Final = struct.Struct("!BIII")
REPLY_FORMAT: Final = struct.Struct("!II")
_ITEM_FORMAT: Final = struct.Struct("!I")

SET, GET, ADD, CHECK, APPEND, MULTI_GET, COMPARE_SET, DELETE, COUNT = range(9)
LAST_KIND: Final = COUNT

MAX_REQUEST_BYTES: Final = 1 << 20
"""Bytes of key plus value in one request. A caller that announces more is not a member."""


def as_list(items: Iterable[bytes]) -> bytes:
    """Items as one value."""
    return b"".join(_ITEM_FORMAT.pack(len(item)) + item for item in items)


def items_of(data: bytes) -> Iterator[bytes]:
    """Decode the items of a list.

    Raises:
        ValueError: the bytes are not a valid list.
    """
    at = 0
    while at < len(data):
        if len(data) - at < _ITEM_FORMAT.size:
            raise ValueError("not a list")
        (size,) = _ITEM_FORMAT.unpack_from(data, at)
        at += _ITEM_FORMAT.size + size
        if at > len(data):
            raise ValueError("not a list")
        yield data[at - size : at]
