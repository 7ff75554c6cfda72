"""The protocol between a store's client and server (edriver/worker/group/store.py, store_server.py). Pure.

A request is its kind, a number, the lengths of key and value, then both; a reply is the request's number, the length of
the answer, and the answer. Several keys, or values, are a list in which each item follows its length. Nothing is ever
unpickled.

A group's values are nearly alike: each member's addresses are some 150 bytes of its own, and then the same 8 for each
member. So a list of them can be compressed: to a thirtieth for 1,024 members, each of which gets 8.5 MB. A server of a
release without COMPRESSED_MULTI_GET would hang up on who asks for that; so a client first checks for COMPRESSION_KEY.

A client may speak to its agent's proxy (edriver/agent/store_proxy.py) instead. Its first request there is VIA: the key
names what shares a connection to the server, the value is the server's `via_address`. The answer comes once there is
that connection, and is empty; any other answer says why there is none. The server itself knows nothing of this.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import Final

REQUEST_FORMAT: Final = struct.Struct("!BIII")
REPLY_FORMAT: Final = struct.Struct("!II")
_ITEM_FORMAT: Final = struct.Struct("!I")

SET, GET, ADD, CHECK, APPEND, MULTI_GET, COMPARE_SET, DELETE, COUNT, COMPRESSED_MULTI_GET = range(10)
LAST_KIND: Final = COMPRESSED_MULTI_GET
VIA: Final = 255
"""To a proxy alone."""

COMPRESSION_KEY: Final = b"edriver/compression"
"""Counts as set, where a server compresses lists."""

COMPRESSED_KEYS: Final = 32
"""Keys in one request from which on their values are worth compressing."""

MAX_REQUEST_BYTES: Final = 1 << 20
"""Bytes of key plus value in one request. A caller that announces more is not a member."""

MAX_LIST_BYTES: Final = 1 << 29
"""Bytes of all values that one request asks for: those of 8,000 members."""


def as_list(items: Iterable[bytes]) -> bytes:
    """Items as one value."""
    return b"".join(_ITEM_FORMAT.pack(len(item)) + item for item in items)


def via_address(host: str, port: int) -> bytes:
    """Where a proxy is to connect to."""
    return f"{host} {port}".encode()


def via_address_in(value: bytes) -> tuple[str, int]:
    """Decode such an address.

    Raises:
        ValueError: the bytes are not an address and a port.
    """
    host, port = value.decode().split()
    return host, int(port)


def compressed(items: bytes) -> bytes:
    """A list, as the answer to COMPRESSED_MULTI_GET."""
    return zlib.compress(items, level=3)  # 1 finds repetitions of a few bytes alone, and takes as long


def decompressed(data: bytes) -> bytes:
    """Decode such an answer.

    Raises:
        ValueError: the bytes are not a compressed list, or of one that is longer than any.
    """
    stream = zlib.decompressobj()
    try:
        items = stream.decompress(data, MAX_LIST_BYTES)
    except zlib.error as error:
        raise ValueError(f"not a compressed list: {error}") from None
    if not stream.eof:
        raise ValueError(f"a compressed list that is cut, or longer than {MAX_LIST_BYTES} bytes")
    return items


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
