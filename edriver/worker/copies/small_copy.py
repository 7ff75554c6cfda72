"""Copies of what is small, cheap enough to make one at every boundary.

Immutables are kept by reference, containers by value as long as they are small; what is neither is refused. This file
does not import torch: a caller passes the rule for tensors.
"""

from __future__ import annotations

import collections
import copy
import datetime
import decimal
import enum
import fractions
import pathlib
import pickle
import types
import uuid
from collections.abc import Callable
from typing import Any

SMALL_BYTES = 4096
"""What one value may take: 8 bytes for each item of a container, or the pickled size of an object."""


class Fixed:
    """A box whose contents never change, so that the box is kept by reference.

    Args:
        contents: anything.
    """

    __slots__ = ("contents",)

    def __init__(self, contents: Any) -> None:
        self.contents = contents


IMMUTABLE_TYPES = frozenset({Fixed, int, float, complex, str, bytes, bool, type(None), range, type, types.FunctionType})
"""Exact types whose values are kept by reference."""

_IMMUTABLE_BASES = (
    enum.Enum,
    pathlib.PurePath,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    decimal.Decimal,
    fractions.Fraction,
    uuid.UUID,
    types.BuiltinFunctionType,
)
_SEQUENCE_TYPES = frozenset({list, collections.deque})
_MAPPING_TYPES = frozenset({dict, collections.OrderedDict, collections.defaultdict, collections.Counter})
_ITEM_BYTES = 8


class NotSmallError(Exception):
    """A value is too large, or of a kind that cannot be copied."""


def not_ours(value: Any) -> Any:
    """The rule of a state of plain objects for values that it knows nothing of: none."""
    del value
    return NotImplemented


class SmallCopies:
    """Copies values that may share parts; their copies share them too.

    Args:
        special: copies a value that has a special rule, else returns NotImplemented.
    """

    def __init__(self, special: Callable[[Any], Any] = not_ours) -> None:
        self._special = special
        self._memo: dict[int, Any] = {}
        self._originals: list[Any] = []  # as long as they live, nothing else gets their id
        self._room = 0

    def of(self, value: Any) -> Any:
        """A copy of one value.

        Raises:
            NotSmallError: it takes more than SMALL_BYTES, or cannot be copied.
        """
        if type(value) in IMMUTABLE_TYPES:
            return value
        self._room = SMALL_BYTES
        return self._copy(value)

    def _copy(self, value: Any) -> Any:
        kind = type(value)
        if kind in IMMUTABLE_TYPES:
            return value
        if id(value) in self._memo:
            return self._memo[id(value)]
        self._originals.append(value)
        if kind in _MAPPING_TYPES:
            self._take(_ITEM_BYTES * 2 * len(value))
            result = self._memo[id(value)] = copy.copy(value)
            for key, item in value.items():
                if type(item) not in IMMUTABLE_TYPES:
                    result[key] = self._copy(item)
        elif kind in _SEQUENCE_TYPES:
            self._take(_ITEM_BYTES * len(value))
            result = self._memo[id(value)] = copy.copy(value)
            for at, item in enumerate(value):
                if type(item) not in IMMUTABLE_TYPES:
                    result[at] = self._copy(item)
        elif kind in (tuple, set, frozenset):
            self._take(_ITEM_BYTES * len(value))
            result = self._memo[id(value)] = kind(map(self._copy, value))
        elif (result := self._special(value)) is NotImplemented:
            result = self._memo[id(value)] = value if isinstance(value, _IMMUTABLE_BASES) else self._object(value)
        return result

    def _take(self, size: int) -> None:
        self._room -= size
        if self._room < 0:
            raise NotSmallError(f"it is larger than {SMALL_BYTES // 1024} KB")

    def _object(self, value: Any) -> Any:
        try:
            self._take(len(pickle.dumps(value)))
            return copy.deepcopy(value, self._memo)
        except NotSmallError:
            raise
        except Exception as error:
            raise NotSmallError(f"a {type(value).__name__} cannot be copied ({error})") from error
