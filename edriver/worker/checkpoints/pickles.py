"""What torch.distributed.checkpoint's own types are packed with: plans on their way, metadata in a shard.

They are pickled, as DCP's `.metadata` is. Metadata comes out of memory that this run's checkpoint servers hold, over a
unix socket in the user's folder or mutual TLS. Plans pass through the round's store, which asks nobody who they are:
they end with a MAC under the round's secret, which its members alone have.
"""

from __future__ import annotations

import hashlib
import hmac
import pickle
from typing import Any, Final

_MAC_BYTES: Final = 32


class ForgedError(Exception):
    """What has arrived was not written by a member of the round."""


def packed(value: Any) -> bytes:
    """A value as bytes."""
    return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)


def unpacked(data: bytes | memoryview) -> Any:
    """The value that bytes stand for. They come from a process of this run: unpickling runs code in them."""
    return pickle.loads(data)  # noqa: S301  see the module's head


def sealed(value: Any, secret: bytes, name: str) -> bytes:
    """A value as bytes that members of the round recognise.

    Args:
        value: the value.
        secret: the round's.
        name: what it is, unique in the round.
    """
    data = packed(value)
    return data + _mac(data, secret, name)


def opened(data: bytes, secret: bytes, name: str) -> Any:
    """The value that a member has sealed under that name.

    Raises:
        ForgedError: none has.
    """
    content, mac = data[:-_MAC_BYTES], data[-_MAC_BYTES:]
    if not hmac.compare_digest(mac, _mac(content, secret, name)):
        raise ForgedError(f"{name} does not come from a member of the round")
    return unpacked(content)


def _mac(data: bytes, secret: bytes, name: str) -> bytes:
    mac = hmac.new(secret, f"edriver checkpoint {name}\0".encode(), hashlib.sha256)
    mac.update(data)
    return mac.digest()
