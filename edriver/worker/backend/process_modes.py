"""The modes in which torch computes in this process: what a script sets once, and what then holds for all that follows.

Checked with torch 2.11 to 2.15. Interfaces: torch._GLOBAL_DEVICE_CONTEXT, torch._C._is_any_autocast_enabled, torch._C's
DisableTorchFunction, torch.utils._python_dispatch._disable_current_modes, and the dicts of hooks for all modules and
optimizers in torch.nn.modules.module and torch.optim.optimizer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import torch
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers

_AUTOCAST_DEVICES: Final = ("cpu", "cuda")

_MODULE_HOOKS: Final = (
    "_global_buffer_registration_hooks",
    "_global_module_registration_hooks",
    "_global_parameter_registration_hooks",
    "_global_backward_pre_hooks",
    "_global_backward_hooks",
    "_global_forward_pre_hooks",
    "_global_forward_hooks",
    "_global_forward_hooks_always_called",
    "_global_forward_hooks_with_kwargs",
)
_OPTIMIZER_HOOKS: Final = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")


class ProcessModes(NamedTuple):
    """The modes that a plain call sets and that stay until another one.

    Attributes:
        grad: whether gradients are recorded.
        autocast: of each kind of device, whether it is on, and the type that it casts to.
        dtype: the default one.
        device: the default one that torch.set_default_device has set; None: it has set none.
        deterministic: whether deterministic algorithms are demanded, and whether others only cause a warning.
    """

    grad: bool
    autocast: tuple[tuple[str, bool, torch.dtype], ...]
    dtype: torch.dtype
    device: str | None
    deterministic: tuple[bool, bool]

    def but_for_context_managers(self, entered: ProcessModes, left: ProcessModes) -> ProcessModes:
        """These modes, noted at a boundary, without what a context manager around it has set.

        When an exception leaves the function, a context manager sets what it was before, and a plain call stays.

        Args:
            entered: the modes in which the function was called,
            left: and those in which it was left.
        """
        each: Iterator[Any] = zip(entered, self, left, strict=True)
        modes: list[Any] = [before if before in (noted, now) else noted for before, noted, now in each]
        return ProcessModes(*modes)

    def text(self) -> str:
        """The modes as text for people: what of them is not as torch has it at the start, beside gradients."""
        kind = None if self.device is None else torch.device(self.device).type
        parts = [
            "gradients on" if self.grad else "gradients off",
            *(f"autocast to {_name(dtype)} on {device}" for device, enabled, dtype in self.autocast if enabled),
            "" if self.dtype is torch.float32 else f"default dtype {_name(self.dtype)}",
            "" if kind in (None, "cpu") else f"default device {kind}",
            "deterministic algorithms" if self.deterministic[0] else "",
        ]
        return ", ".join(filter(None, parts))


def current() -> ProcessModes:
    """The modes of this thread."""
    return ProcessModes(
        torch.is_grad_enabled(),
        tuple((kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in _AUTOCAST_DEVICES),
        torch.get_default_dtype(),
        _default_device(),
        (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
    )


def quick() -> tuple[object, ...]:
    """Most of them in half a microsecond, to see whether `current` would answer something else than before."""
    return torch.is_grad_enabled(), _any_autocast(), torch.get_default_dtype(), _device_context()


def enter(modes: ProcessModes) -> None:
    """Set the modes of this thread; those that are as they should be are not touched."""
    now = current()
    if now.grad != modes.grad:
        torch.set_grad_enabled(modes.grad)
    if now.autocast != modes.autocast:
        for kind, enabled, dtype in modes.autocast:
            torch.set_autocast_enabled(kind, enabled)
            torch.set_autocast_dtype(kind, dtype)
        torch.clear_autocast_cache()
    if now.dtype != modes.dtype:
        torch.set_default_dtype(modes.dtype)
    if now.device != modes.device:
        torch.set_default_device(modes.device)
    if now.deterministic != modes.deterministic:
        torch.use_deterministic_algorithms(modes.deterministic[0], warn_only=modes.deterministic[1])


def inference() -> bool:
    """Whether inference mode is on."""
    return torch.is_inference_mode_enabled()


def with_inference(mode: bool) -> contextlib.AbstractContextManager[None]:
    """Have inference mode on or off; where it is so already, nothing changes."""
    return _NO_CHANGE if torch.is_inference_mode_enabled() == mode else torch.inference_mode(mode)


_NO_CHANGE: Final = contextlib.nullcontext()


@contextlib.contextmanager
def as_at_start() -> Iterator[None]:
    """Compute as in a process whose script has set nothing: no mode of this thread, and no hook for all modules, holds.

    A default dtype stays, for it is that of all threads: name the dtype.
    """
    with contextlib.ExitStack() as stack:
        for hooks in _hooks():
            stack.callback(hooks.update, dict(hooks))
            hooks.clear()
        stack.enter_context(without_tensor_modes())
        stack.enter_context(torch.enable_grad())
        stack.enter_context(torch.autograd.set_detect_anomaly(False))
        for kind in _AUTOCAST_DEVICES:
            stack.enter_context(_without_autocast(kind))
        yield


@contextlib.contextmanager
def without_tensor_modes() -> Iterator[None]:
    """Make tensors as torch makes them, and not as inference mode, a default device or a mode of the script's would.

    Interface: DisableTorchFunction and _disable_current_modes. Without them edriver's own tensors are made as the
    script's: with a default device other than the host's, a sync fails.
    """
    with contextlib.ExitStack() as stack:
        if disable := getattr(torch._C, "DisableTorchFunction", None):
            stack.enter_context(disable())
        if torch._C._len_torch_dispatch_stack():
            from torch.utils._python_dispatch import _disable_current_modes

            stack.enter_context(_disable_current_modes())
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        yield


@contextlib.contextmanager
def _without_autocast(kind: str) -> Iterator[None]:
    enabled = torch.is_autocast_enabled(kind)
    torch.set_autocast_enabled(kind, False)
    try:
        yield
    finally:
        torch.set_autocast_enabled(kind, enabled)


def _hooks() -> Iterator[dict[int, Any]]:
    """The dicts of hooks for all modules and all optimizers of this process; of what torch has no longer, none."""
    for owner, names in ((modules, _MODULE_HOOKS), (optimizers, _OPTIMIZER_HOOKS)):
        for name in names:
            found = getattr(owner, name, None)
            if isinstance(found, dict):
                yield found


_any_autocast: Callable[[], bool] = getattr(
    torch._C, "_is_any_autocast_enabled", lambda: any(map(torch.is_autocast_enabled, _AUTOCAST_DEVICES))
)


def _device_context() -> Any:
    """What torch.set_default_device has set, None where it has set nothing.

    Interface: torch._GLOBAL_DEVICE_CONTEXT. torch.get_default_device does not tell it from `with torch.device(...)`,
    and takes 4 microseconds. If it moves, a default device is not restored.
    """
    return None if _global_device_context is None else _global_device_context.__dict__.get("device_context")


_global_device_context: Final = getattr(torch, "_GLOBAL_DEVICE_CONTEXT", None)
"""A threading.local, whose missing attribute takes ten times as long to ask for as its dict's missing key."""


def _default_device() -> str | None:
    context = _device_context()
    return None if context is None else str(context.device)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
