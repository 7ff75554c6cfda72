"""The key-value store of one run, with the operations of torch.distributed.Store. Pure.

A key that is added to carries a number drawn for the call, so that a call which is repeated because its answer was lost
is made once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Final

from edriver.model.limits import MAX_STORE_VALUE_BYTES, OutOfBoundsError
from edriver.v1.rendezvous_pb2 import ChangeKeyRequest, ChangeKeyResponse
from edriver.wire import store_values
from edriver.wire.store_values import NotANumberError

MAX_STORE_BYTES: Final = 64 * 1024 * 1024
"""Bytes of all keys and values of one run, and of the changes that are remembered."""

MAX_STORE_KEYS: Final = 500_000
"""Keys of one run."""

MAX_REMEMBERED_CHANGES: Final = 10_000
"""Changes that are remembered because they may arrive again."""

ENTRY_BYTES: Final = 200
"""The overhead of a key, or of a remembered change, in bytes."""


class KeyValues:
    """One run's keys.

    A change that arrives again is made once. What is remembered of it for that is small: a change that was made answers
    the same from its request, beside the sum of an addition.

    Attributes:
        size: bytes of all keys and values.
    """

    def __init__(self) -> None:
        self.size = 0
        self._values: dict[str, bytes] = {}
        self._made: OrderedDict[bytes, bytes] = OrderedDict()  # the sum of each addition; of other changes nothing
        self._made_bytes = 0

    def __len__(self) -> int:
        """The number of keys."""
        return len(self._values)

    @property
    def footprint(self) -> int:
        """Bytes of all that is kept, in memory and on disk."""
        return self.size + self._made_bytes + ENTRY_BYTES * len(self._values)

    def items(self) -> Iterable[tuple[str, bytes]]:
        """All keys and their values."""
        return self._values.items()

    def get(self, key: str) -> bytes | None:
        """The value of a key; None: it is not set."""
        return self._values.get(key)

    def set(self, key: str, value: bytes) -> None:
        """Set a key.

        Raises:
            OutOfBoundsError: the store is full.
        """
        self.set_all({key: value})

    def set_all(self, values: Mapping[str, bytes]) -> None:
        """Set all of these keys, or none. One may make room for another, whatever their order.

        Raises:
            OutOfBoundsError: the store has no room for them.
        """
        self.check_room(values)
        for key, value in values.items():
            before = self._values.get(key)
            self.size += len(value) - len(before) if before is not None else len(value) + len(key)
            self._values[key] = value

    def check_room(self, values: Mapping[str, bytes]) -> None:
        """Raise OutOfBoundsError if the store has no room for these keys."""
        grows = more = 0
        for key, value in values.items():
            before = self._values.get(key)
            more += before is None
            grows += len(value) - len(before) if before is not None else len(value) + len(key)
        if self.size + self._made_bytes + grows > MAX_STORE_BYTES:
            raise OutOfBoundsError(f"the store of a run holds at most {MAX_STORE_BYTES} bytes")
        if len(self._values) + more > MAX_STORE_KEYS:
            raise OutOfBoundsError(f"the store of a run holds at most {MAX_STORE_KEYS} keys")

    def delete(self, key: str) -> bool:
        """Remove a key; returns whether it was set."""
        value = self._values.pop(key, None)
        if value is None:
            return False
        self.size -= len(key) + len(value)
        return True

    def change(self, request: ChangeKeyRequest) -> tuple[ChangeKeyResponse, bool]:
        """Change one key; returns the answer, and whether this has changed it: one that arrives again is made once.

        Raises:
            OutOfBoundsError: there is no room for it.
            NotANumberError: something is to be added to what is not a number.
        """
        if (result := self._made.get(request.request_id)) is not None:
            return self._answer(request, result), False
        answer, made = self._change(request)
        if made:  # else it may be tried again
            self.remember(request.request_id, answer.value if request.HasField("add") else b"")
        return answer, made

    def remember(self, request_id: bytes, result: bytes) -> None:
        """Remember a change that was made: the sum of an addition, of others nothing."""
        result = result[: store_values.NUMBER_BYTES]  # an older journal may have the whole value
        before = self._made.get(request_id)
        self._made[request_id] = result
        self._made_bytes += len(result) - len(before) if before is not None else _cost(request_id, result)
        if len(self._made) > MAX_REMEMBERED_CHANGES:
            self._made_bytes -= _cost(*self._made.popitem(last=False))

    def made(self) -> Iterable[tuple[bytes, bytes]]:
        """The changes that are remembered: see `remember`."""
        return self._made.items()

    def _answer(self, request: ChangeKeyRequest, result: bytes) -> ChangeKeyResponse:
        """What the change was answered, or would be now."""
        match request.WhichOneof("change"):
            case "add":
                return ChangeKeyResponse(value=result)
            case "append":
                return ChangeKeyResponse(value=self._values.get(request.key, b""))
            case "compare_set":
                return ChangeKeyResponse(value=request.compare_set.desired)
            case _:
                return ChangeKeyResponse(existed=True)

    def _change(self, request: ChangeKeyRequest) -> tuple[ChangeKeyResponse, bool]:
        """Change the key, if its value is as expected; returns the answer, and whether it was changed."""
        key, value = request.key, self._values.get(request.key)
        match request.WhichOneof("change"):
            case "add":
                try:
                    after = store_values.added(value, request.add)
                except NotANumberError as error:
                    raise NotANumberError(f"{key!a}: {error}") from None
            case "append":
                after = (value or b"") + request.append
            case "compare_set":
                compare = request.compare_set
                after, is_set = store_values.compared(value, compare.expected, compare.desired)
                if not is_set:
                    return ChangeKeyResponse(value=after), False
            case _:
                existed = self.delete(key)
                return ChangeKeyResponse(existed=existed), existed
        if len(after) > MAX_STORE_VALUE_BYTES:
            raise OutOfBoundsError(f"a value has {MAX_STORE_VALUE_BYTES} bytes at most")
        self.set(key, after)
        return ChangeKeyResponse(value=after), True


def _cost(request_id: bytes, result: bytes) -> int:
    return len(request_id) + len(result) + ENTRY_BYTES
