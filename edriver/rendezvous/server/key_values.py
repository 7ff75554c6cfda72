"""The key-value store of one run, with the operations of torch.distributed.Store. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from edriver.common.limits import OutOfBoundsError
from edriver.v1.rendezvous_pb2 import ChangeKeyRequest, ChangeKeyResponse

MAX_STORE_BYTES: Final = 64 * 1024 * 1024
"""Bytes of all keys and values of one run."""

MAX_STORE_KEYS: Final = 500_000
"""Keys of one run."""

MAX_REMEMBERED_CHANGES: Final = 10_000
"""Answers that are kept for changes that may arrive again."""

_MAX_NUMBER: Final = 2**63 - 1


class NotANumberError(ValueError):
    """Something is to be added to a value that is no number."""


class KeyValues:
    """One run's keys.

    Attributes:
        size: bytes of all keys and values.
    """

    def __init__(self) -> None:
        self.size = 0
        self._values: dict[str, bytes] = {}
        self._answers: OrderedDict[bytes, ChangeKeyResponse] = OrderedDict()

    def __len__(self) -> int:
        """How many keys there are."""
        return len(self._values)

    def items(self) -> Iterable[tuple[str, bytes]]:
        """All keys and their values."""
        return self._values.items()

    def get(self, key: str) -> bytes | None:
        """The value of a key; None: it is not set."""
        return self._values.get(key)

    def set(self, key: str, value: bytes) -> None:
        """Set a key.

        Raises:
            OutOfBoundsError: there is no room for it.
        """
        self.check_room([(key, value)])
        before = self._values.get(key)
        self.size += len(value) - len(before) if before is not None else len(value) + len(key)
        self._values[key] = value

    def check_room(self, pairs: Iterable[tuple[str, bytes]]) -> None:
        """Raise OutOfBoundsError if there is no room for these keys."""
        grows = more = 0
        for key, value in pairs:
            before = self._values.get(key)
            more += before is None
            grows += len(value) - len(before) if before is not None else len(value) + len(key)
        if self.size + grows > MAX_STORE_BYTES:
            raise OutOfBoundsError(f"the store of a run holds {MAX_STORE_BYTES} bytes at most")
        if len(self._values) + more > MAX_STORE_KEYS:
            raise OutOfBoundsError(f"the store of a run holds {MAX_STORE_KEYS} keys at most")

    def delete(self, key: str) -> bool:
        """Remove a key; returns whether it was set."""
        value = self._values.pop(key, None)
        if value is None:
            return False
        self.size -= len(key) + len(value)
        return True

    def change(self, request: ChangeKeyRequest) -> tuple[ChangeKeyResponse, bool]:
        """Change one key; returns the answer, and whether this was new: one that arrives again is made once.

        Raises:
            OutOfBoundsError: there is no room for it.
            NotANumberError: something is to be added to what is no number.
        """
        if (answer := self._answers.get(request.request_id)) is not None:
            return answer, False
        answer = self._change(request)
        self.remember(request.request_id, answer)
        return answer, True

    def remember(self, request_id: bytes, answer: ChangeKeyResponse) -> None:
        """Keep the answer to a change."""
        self._answers[request_id] = answer
        if len(self._answers) > MAX_REMEMBERED_CHANGES:
            self._answers.popitem(last=False)

    def answers(self) -> Iterable[tuple[bytes, ChangeKeyResponse]]:
        """The answers that are kept, by the changes' ids."""
        return self._answers.items()

    def _change(self, request: ChangeKeyRequest) -> ChangeKeyResponse:
        key, value = request.key, self._values.get(request.key)
        match request.WhichOneof("change"):
            case "add":
                after = b"%d" % (_number(value, key) + request.add)
            case "append":
                after = (value or b"") + request.append
            case "compare_set":
                expected = request.compare_set.expected
                if value is None and expected:
                    return ChangeKeyResponse(value=expected)  # as torch's stores answer
                if value is not None and value != expected:
                    return ChangeKeyResponse(value=value)
                after = request.compare_set.desired
            case _:
                return ChangeKeyResponse(existed=self.delete(key))
        self.set(key, after)
        return ChangeKeyResponse(value=after)


def _number(value: bytes | None, key: str) -> int:
    try:
        number = int(value or b"0")
    except ValueError:
        number = _MAX_NUMBER + 1
    if abs(number) > _MAX_NUMBER:
        raise NotANumberError(f"the value of {key!a} is no number to which something could be added")
    return number
