"""What a state cannot keep: found when the state is made, and not by the first commit or the first newcomer."""

from __future__ import annotations

import collections
import copy
import sys
from collections.abc import Iterator
from typing import Any, Final

from edriver.worker.copies.small_copy import IMMUTABLE_TYPES

ADVICE: Final = "keep what is not data out of the state: files, locks, connections, loaders"

_MAPPINGS: Final = (dict, collections.OrderedDict)
_SEQUENCES: Final = (list, tuple, set, frozenset, collections.deque)


def refuse_unkept(name: str, value: Any) -> None:
    """Refuse an attribute that a commit could not copy, or a sync could not send.

    Numbers, texts, tensors and containers of those are looked at and no more. Of other objects a copy is made and
    forgotten, of all but the elements of their tensors and arrays.

    Raises:
        TypeError: names the attribute, and the reason.
    """
    for part in _objects_in(value):
        try:
            _try(part)
        except Exception as error:
            what = f"a {type(part).__name__} in it" if part is not value else f"a {type(part).__name__}"
            raise TypeError(
                f"the state's attribute {name!r} cannot be kept: {what} cannot be copied ({type(error).__name__}: "
                f"{error}); {ADVICE}"
            ) from error


def _try(part: Any) -> None:
    large: list[Any] = []
    if "torch" in sys.modules:  # a world of plain objects does without
        from edriver.worker.sync.sync import rehearse

        large = rehearse(part)
    copy.deepcopy(part, {id(each): each for each in large})


def _objects_in(value: Any) -> Iterator[Any]:
    """What in a value is neither a container nor plain."""
    torch: Any = sys.modules.get("torch")
    tensors = () if torch is None else (torch.Tensor, torch.nn.Parameter)
    seen: set[int] = set()
    found = [value]
    while found:
        item = found.pop()
        kind = type(item)
        if kind in IMMUTABLE_TYPES or id(item) in seen:
            continue
        seen.add(id(item))
        if kind in _MAPPINGS:
            found.extend(item.keys())
            found.extend(item.values())
        elif kind in _SEQUENCES:
            found.extend(item)
        elif kind not in tensors or item.layout is not torch.strided or item.is_quantized:
            yield item
