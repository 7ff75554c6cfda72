"""What is small in a state, as text that is the same on all workers with the same state."""

from __future__ import annotations

import hashlib
from typing import Any

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
    text = " ".join(parts)
    if len(text) <= MAX_DIGEST_LENGTH:
        return text
    tail = f"... sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    return text[: MAX_DIGEST_LENGTH - len(tail)] + tail


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
