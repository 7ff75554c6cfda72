"""What a torch.amp.GradScaler remembers, without waiting for the device, as its state_dict does.

Checked with torch 2.11 to 2.15. Interfaces: GradScaler._scale, _growth_tracker, _per_optimizer_states.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import torch

_SCALER_ATTRIBUTES: Final = ("_scale", "_growth_tracker", "_per_optimizer_states")


class ScalerState(NamedTuple):
    """The scale and the growth tracker: tensors, or None before the first use."""

    scale: Any
    growth: Any


def is_known(scaler: torch.amp.GradScaler) -> bool:
    """Whether it has these attributes. Else state_dict is asked, which waits for the device at each boundary."""
    return all(hasattr(scaler, name) for name in _SCALER_ATTRIBUTES)


def scale_of(scaler: torch.amp.GradScaler) -> ScalerState:
    """The scaler's current tensors, not copies."""
    return ScalerState(scaler._scale, scaler._growth_tracker)


def set_scale(scaler: torch.amp.GradScaler, kept: ScalerState) -> None:
    """Put these in their place."""
    scaler._scale, scaler._growth_tracker = kept


def forget_unscaled(scaler: torch.amp.GradScaler) -> None:
    """Forget which optimizers' gradients an interrupted step has unscaled.

    If that has moved, nothing is forgotten: after a recovery in the middle of a step, unscale_() reports that it has
    been called already, with torch's own error.
    """
    states = getattr(scaler, "_per_optimizer_states", None)
    if states is not None:
        states.clear()
