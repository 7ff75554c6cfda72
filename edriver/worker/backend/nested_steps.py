"""Steps of an optimizer within its own: torch calls hooks for each class whose step is called, super().step() included.

It does so for the classes of which an object has been made, so for a subclass's parent in some processes alone.

Interface: that torch calls a step's hooks from a wrapper of it (Optimizer.profile_hook_step), whose variable `self` is
the optimizer (seen in torch 2.13). If that changes, a step within a step counts as a second one. And the names of the
attributes in which an optimizer has its hooks.
"""

from __future__ import annotations

import sys

from torch.optim import Optimizer


def has_hooks(attribute: str) -> bool:
    """Whether torch keeps hooks in an optimizer's attribute of this name."""
    return attribute.startswith("_optimizer_") and attribute.endswith("_hooks")


def is_nested(optimizer: Optimizer) -> bool:
    """Whether the hook that calls this was called for a step within another one of the same optimizer."""
    wrapper = sys._getframe(2)
    frame = wrapper.f_back
    while frame is not None:
        if frame.f_code is wrapper.f_code and frame.f_locals.get("self") is optimizer:
            return True
        frame = frame.f_back
    return False
