"""What a script gives to a collective, looked at before any member is asked.

What only one member can see (this is not a tensor, this rank is not a member) is raised by that one at once, as in
Horovod. What would make the others wait is a refusal, which they agree on: all of them raise the same error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from edriver.horovod.process_sets import ProcessSet


def checked_tensors(kind: str, tensors: Sequence[Any], members: Any) -> None:
    """See that a collective is called with tensors, and a process set.

    Raises:
        TypeError: it is not.
    """
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{kind} takes a torch.Tensor, not {_type(tensor)}")
    if not isinstance(members, ProcessSet):
        raise TypeError(f"{kind}: process_set is a ProcessSet, not {_type(members)}")


def no_rows(tensors: Sequence[torch.Tensor]) -> str:
    """Why these tensors cannot be split by rows; empty: they can."""
    return "a tensor without dimensions has no rows" if any(not tensor.dim() for tensor in tensors) else ""


def _type(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
