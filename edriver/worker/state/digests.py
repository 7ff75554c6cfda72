"""What is small in a state, as text that is the same on all workers with the same state."""

from __future__ import annotations

import hashlib
from typing import Any, Final

MAX_DIGEST_LENGTH = 1024
"""No digest has more characters."""


def digest_text(values: dict[str, Any]) -> str:
    """Canonical text of those values that are small and the same on all workers with the same state.

    Others (tensors, objects of types not known here) are left out, whole attribute by whole attribute.
    """
    parts = []
    for name in sorted(values):
        try:
            parts.append(f"{name}={_canonical(values[name])}")
        except TypeError:
            continue
    return _within(" ".join(parts), MAX_DIGEST_LENGTH)


MODES: Final = "_modes"
"""The name under which modes stand in a digest: no attribute of a state has such a name."""


def with_modes(digest: str, modes: str | None) -> str:
    """A digest, and the modes that the training function computes in.

    Args:
        digest: of the state's attributes.
        modes: as text for people; None: of a process without torch.
    """
    if modes is None:
        return digest
    text = f"{MODES}={modes.encode('ascii', 'replace').decode()[: MAX_DIGEST_LENGTH // 2]}"
    room = MAX_DIGEST_LENGTH - len(text) - 1
    return f"{_within(digest, room)} {text}" if digest else text


def _within(digest: str, length: int) -> str:
    if len(digest) <= length:
        return digest
    tail = f"... sha256:{hashlib.sha256(digest.encode()).hexdigest()}"
    return digest[: length - len(tail)] + tail


def _canonical(value: Any) -> str:
    # Exact types only: a subclass may have a repr with an address in it.
    kind = type(value)
    if kind in (int, float, str, bytes, bool, type(None)):
        return ascii(value)
    if kind is tuple or kind is list:
        inner = ", ".join(_canonical(item) for item in value)
        return f"({inner})" if kind is tuple else f"[{inner}]"
    if kind is dict:
        return "{" + ", ".join(sorted(f"{_canonical(k)}: {_canonical(v)}" for k, v in value.items())) + "}"
    raise TypeError(f"{kind.__name__} has no canonical text")
