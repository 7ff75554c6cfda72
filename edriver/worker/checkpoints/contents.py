"""What a checkpoint holds, as torch.distributed.checkpoint is given it.

The state stands in it twice, with its tensors once: in a form that scripts without edriver read (`model`, `optimizer`,
each attribute under its name), and as an outline of the state's own tree, which names tensors by their keys. The
outline consists of built-in types alone, besides what the state's attributes hold, so that nothing of edriver is needed
to read a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from edriver.worker.copies.snapshot import IMMUTABLE_TYPES, belongs_to, home_of, is_plain_tensor

OUTLINE: Final = "_edriver"
"""The key of the outline: no attribute of a state has such a name."""


def readable_form(tree: Mapping[str, Any], of_handled: Callable[[str, Any], Any]) -> dict[str, Any]:
    """A committed tree as scripts without edriver read it.

    Args:
        tree: for each name, whether its value has a handler, and its state or the value itself.
        of_handled: the readable form of a state with a handler.
    """
    form: dict[str, Any] = {}
    for name, (handled, part) in tree.items():
        if handled:
            form[name] = of_handled(name, part)
        elif type(part) in IMMUTABLE_TYPES:
            form[name] = part
        elif (tensors := _tensors_of(part)) is not None:
            form[name] = tensors
    return form


def _tensors_of(value: Any) -> Any:
    """A value's tensors, at their places in it; None if it has no tensors."""
    if is_plain_tensor(value):
        return value
    items = value.items() if type(value) is dict else enumerate(value) if type(value) in (list, tuple) else ()
    found = {str(key): tensors for key, item in items if (tensors := _tensors_of(item)) is not None}
    return found or None


def outline(value: Any, key_of: Mapping[int, str]) -> tuple[Any, ...]:
    """A tree without the elements of its tensors.

    Args:
        value: any nesting of dicts, lists and tuples.
        key_of: the keys under which tensors are stored, by their ids.
    """
    kind = type(value)
    if kind is dict:
        return "dict", [(key, outline(item, key_of)) for key, item in value.items()]
    if kind in (list, tuple):
        return kind.__name__, [outline(item, key_of) for item in value]
    if is_plain_tensor(value) and id(value) in key_of:
        return "tensor", key_of[id(value)], str(home_of(value))
    return "object", value


def filled(what: tuple[Any, ...], tensors: Mapping[str, torch.Tensor]) -> Any:
    """Rebuild the tree that an outline describes.

    Args:
        what: the outline.
        tensors: the tensors, by their keys in the outline.

    Raises:
        ValueError: `what` is not an outline, or a tensor is missing.
    """
    match what:
        case "dict", list(items):
            return {key: filled(item, tensors) for key, item in items}
        case "list", list(items):
            return [filled(item, tensors) for item in items]
        case "tuple", list(items):
            return tuple(filled(item, tensors) for item in items)
        case "tensor", str(key), str(home) if key in tensors:
            tensor = tensors[key]
            return tensor if home == "cpu" else belongs_to(tensor, torch.device(home).type)
        case "object", value:
            return value
    raise ValueError(f"the outline of a state contains {str(what)[:100]!r}")
