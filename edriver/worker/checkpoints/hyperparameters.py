"""What a script has set for its optimizers and schedulers, and a checkpoint brings otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

MAX_NAMED: Final = 5
"""Differences that are named; further ones are counted."""

_OF_CYCLES: Final = {"max_momentum": ("momentum", "betas")}
"""Options that a scheduler moves where a group has another option."""

_OF_SCHEDULERS: Final = (
    "T_0", "T_max", "T_mult", "end_factor", "eta_min", "factor", "gamma", "milestones", "patience", "power",
    "start_factor", "step_size", "total_iters", "total_steps",
)  # fmt: skip
"""Attributes of torch's schedulers that no step changes."""


def differences(values: Mapping[str, Any], tree: Mapping[str, tuple[bool, Any]]) -> list[str]:
    """Describe where the hyperparameters of the live optimizers and schedulers differ from a captured state.

    A learning rate that a scheduler has changed is not a difference: the initial one counts.

    Args:
        values: the state's optimizers, schedulers and others, by name.
        tree: the captured state of each name: see TorchState.
    """
    found = [text for name, value in values.items() if name in tree for text in _of(name, value, tree[name][1])]
    return [*found[:MAX_NAMED], *([f"{len(found) - MAX_NAMED} more"] if len(found) > MAX_NAMED else [])]


def _of(name: str, value: Any, saved: Any) -> Iterator[str]:
    if not isinstance(saved, Mapping):
        return
    if isinstance(value, Optimizer):
        for at, (live, theirs) in enumerate(zip(value.param_groups, saved.get("param_groups", ()), strict=False)):
            place = name if len(value.param_groups) == 1 else f"{name} group {at}"
            for option, ours, other in _of_group(live, theirs):
                yield _text(place, option, ours, other)
    elif isinstance(value, LRScheduler):
        for option in _OF_SCHEDULERS:
            ours, other = value.state_dict().get(option), saved.get(option)
            if ours is not None and other is not None and ours != other:
                yield _text(name, option, ours, other)


def _of_group(live: dict[str, Any], saved: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    ours, other = (group.get("initial_lr", group.get("lr")) for group in (live, saved))
    if _is_plain(ours) and _is_plain(other) and ours != other:
        yield "lr", ours, other
    moved = {option for mark, options in _OF_CYCLES.items() if mark in saved for option in options}
    for option in sorted(live.keys() & saved.keys() - moved - {"params", "lr", "initial_lr"}):
        if _is_plain(live[option]) and _is_plain(saved[option]) and live[option] != saved[option]:
            yield option, live[option], saved[option]


def _is_plain(value: Any) -> bool:
    return isinstance(value, int | float | str | None) or (isinstance(value, tuple) and all(map(_is_plain, value)))


def _text(place: str, option: str, ours: Any, other: Any) -> str:
    return f"{place} {option} {_short(other)} (the script: {_short(ours)})"


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
