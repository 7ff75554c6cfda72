"""What the operations of torch.distributed.Store make of a value, for all servers of such stores. Pure."""

from __future__ import annotations

from typing import Final

MAX_NUMBER: Final = 2**63 - 1
"""The largest number that a key may hold, as torch's own stores have it."""

NUMBER_BYTES: Final = len(str(-MAX_NUMBER)) + 1
"""Bytes of a sum, at most."""


class NotANumberError(ValueError):
    """The value to which something is to be added, or the sum, is not a number that a key may hold."""


def added(value: bytes | None, more: int) -> bytes:
    """The sum, which is also the answer. A key that is not set counts from 0.

    Raises:
        NotANumberError: the value is not a number, or the sum would be too large: the key keeps its value.
    """
    try:
        number = int(value or b"0")
    except ValueError:
        number = MAX_NUMBER + 1
    if abs(number) > MAX_NUMBER:
        raise NotANumberError("the value is not a number that can be added to")
    if abs(total := number + more) > MAX_NUMBER:
        raise NotANumberError(f"the sum would be beyond {MAX_NUMBER}, the largest number that a key may hold")
    return b"%d" % total


def compared(value: bytes | None, expected: bytes, desired: bytes) -> tuple[bytes, bool]:
    """The answer of compare_set, and whether the value becomes the desired one, which the answer is then.

    It does if it is the expected one; a key that is not set counts as empty, and is answered by what was expected.
    """
    if (value or b"") == expected:
        return desired, True
    return (expected if value is None else value), False
