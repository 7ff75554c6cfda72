"""Copies of trees that hold tensors: aside into buffers allocated once, and back into what is live.

What lies on a GPU is copied into host memory (side_stream.py), and a buffer remembers where its elements belong.

A tree is any nesting of dicts, lists and tuples; its leaves are tensors (copied as such), immutables (kept
by reference) and other objects (copied with `copy.deepcopy`). What occurs twice in a tree occurs twice in
its copy.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

from edriver.worker.backend.process_modes import with_inference
from edriver.worker.copies import small_copy
from edriver.worker.copies.side_stream import Copy, SideCopies

IMMUTABLE_TYPES = small_copy.IMMUTABLE_TYPES | {torch.dtype, torch.device, torch.Size}
"""Exact types whose values are kept by reference."""


def memory_key(tensor: torch.Tensor) -> tuple[object, ...]:
    """Equal for two living tensors that are the same part of the same memory, such as tied weights."""
    storage = tensor.untyped_storage()
    return (
        storage.data_ptr() or id(tensor),  # without elements it has no memory
        tensor.storage_offset(),
        tensor.shape,
        tensor.stride(),
        tensor.dtype,
        tensor.is_conj(),
        tensor.is_neg(),
    )


def is_plain_tensor(value: object) -> bool:
    """Whether a value is a dense tensor of torch's own class, whose elements can be copied one by one."""
    return isinstance(value, torch.Tensor) and (
        type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout is torch.strided and not value.is_quantized
    )


_DEVICE_ATTRIBUTE = "_edriver_home"


def belongs_to(tensor: torch.Tensor, device: torch.device | str) -> torch.Tensor:
    """Note on a copy in host memory where its elements belong; returns it."""
    setattr(tensor, _DEVICE_ATTRIBUTE, device)
    return tensor


def home_of(tensor: torch.Tensor) -> torch.device | str:
    """Where a copy's elements belong."""
    home: torch.device | str = getattr(tensor, _DEVICE_ATTRIBUTE, tensor.device)
    return home


class Loan:
    """The last snapshot's tensors are read by another thread, and not written to until it gives them back."""

    def __init__(self, wait: Callable[[], None]) -> None:
        self.over = False
        self.wait = wait

    def give_back(self) -> None:
        """They may be written to again."""
        self.over = True


class SnapshotBuffers:
    """The tensors of the last snapshot; the next one allocates only for those that are new or reshaped.

    While they are lent the next snapshot goes into others, which are kept as well: memory for two snapshots.

    Args:
        side: what copies tensors that do not lie in host memory.
    """

    def __init__(self, side: SideCopies) -> None:
        self._side = side
        self._buffers: list[torch.Tensor] = []
        self._spare: list[torch.Tensor] = []
        self._loan: Loan | None = None

    def copied(self, tree: dict[str, Any], lasting: Callable[[str, torch.Tensor], bool]) -> dict[str, Any]:
        """A copy of the tree; the copy that was made before is then void, for its buffers are written again.

        Nothing is written before everything that may fail is done, so a failure leaves the last copy whole.

        Args:
            tree: what to copy.
            lasting: whether a tensor under a key of the tree is one that only optimizers change. Of such that lie on a
                GPU the copy continues after this returns: `hold` before changing them.

        Raises:
            TypeError: a part of the tree cannot be copied; names the key it is under.
        """
        with with_inference(False):  # or a later copy could not be written into the same tensors
            return self._copied(tree, lasting)

    def _copied(self, tree: dict[str, Any], lasting: Callable[[str, torch.Tensor], bool]) -> dict[str, Any]:
        lent = self._loan is not None and not self._loan.over
        aside = _Aside(self._spare if lent else self._buffers, self._buffer)
        result = aside.of_state(tree)
        if lent:
            self._spare = self._buffers
        self._loan = None  # what is spare is not written to before the next loan
        at_once: list[Copy] = []
        changing: list[Copy] = []
        beside: list[Copy] = []
        for key, source, target in zip(aside.keys, aside.sources, aside.buffers, strict=True):
            if not self._side.covers(source):
                at_once.append((source, target))
            elif lasting(key, source):
                beside.append((source, target))
            else:
                changing.append((source, target))
        with torch.no_grad():
            self._side.begin(changing, beside)
        _copy_tensors(at_once)
        self._buffers = aside.buffers
        return result

    def lend(self) -> Loan:
        """Lend the last copy; one loan must be over before the next.

        Its `wait` returns once the copy is complete, if a GPU is still busy with it: for another thread to call.
        """
        self._loan = Loan(self._side.completion())
        return self._loan

    @property
    def nbytes(self) -> int:
        """The size of the last copy's tensors, in bytes."""
        return sum(buffer.nbytes for buffer in self._buffers)

    def hold(self) -> None:
        """What is asked of a GPU from now on comes after the last copy."""
        self._side.hold()

    def adopted(self, copy: dict[str, Any]) -> dict[str, Any]:
        """Take over a copy that was made elsewhere as the last one: the next is written into its tensors."""
        aside = _Aside([], lambda tensor, _: tensor)
        aside.of_state(copy)
        self._buffers, self._loan = aside.buffers, None
        return copy

    def _buffer(self, tensor: torch.Tensor, previous: torch.Tensor | None) -> torch.Tensor:
        """The previous one, if it will do for this tensor; else a new one."""
        if previous is not None and _alike(previous, tensor) and self._fits(previous, tensor):
            return previous
        if self._side.covers(tensor):
            return belongs_to(self._side.buffer(tensor), tensor.device)
        return torch.empty_like(tensor, requires_grad=False)

    def _fits(self, buffer: torch.Tensor, tensor: torch.Tensor) -> bool:
        home = getattr(buffer, _DEVICE_ATTRIBUTE, None)
        if self._side.covers(tensor):
            return home == tensor.device and self._side.fits(buffer)
        return home is None and buffer.device == tensor.device


class _Aside:
    """One copy in the making: the tree is built at once, its tensors are listed to be filled in together.

    Args:
        previous: the last copy's buffers, in their order.
        buffer: the buffer for a tensor, given the one that stood in its place before.
    """

    def __init__(
        self, previous: list[torch.Tensor], buffer: Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]
    ) -> None:
        self._previous = previous
        self._buffer = buffer
        self._key = ""
        self._memo: dict[int, Any] = {}
        self._of_memory: dict[tuple[object, ...], torch.Tensor] = {}
        self.keys: list[str] = []
        self.sources: list[torch.Tensor] = []
        self.buffers: list[torch.Tensor] = []

    def of_state(self, tree: dict[str, Any]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, value in tree.items():
            self._key = key
            try:
                result[key] = self.of(value)
            except Exception as error:
                raise TypeError(
                    f"the state's attribute {key!r} cannot be copied ({type(error).__name__}: {error}); keep what is "
                    "not data out of the state: files, locks, connections, loaders"
                ) from error
        return result

    def of(self, value: Any) -> Any:
        kind = type(value)
        if kind in IMMUTABLE_TYPES:
            return value
        seen = self._memo.get(id(value))
        if seen is not None:
            return seen
        if kind is dict:
            result: Any = {}
            self._memo[id(value)] = result
            for key, item in value.items():
                result[key] = self.of(item)
        elif kind is list:
            result = []
            self._memo[id(value)] = result
            result.extend(map(self.of, value))
        elif kind is tuple:
            result = tuple(map(self.of, value))
        elif is_plain_tensor(value):
            result = self._buffer_for(value)
        else:
            result = copy.deepcopy(value, self._memo)
        self._memo[id(value)] = result
        return result

    def _buffer_for(self, tensor: torch.Tensor) -> torch.Tensor:
        key = memory_key(tensor)
        if key in self._of_memory:
            return self._of_memory[key]
        at = len(self.buffers)
        buffer = self._buffer(tensor, self._previous[at] if at < len(self._previous) else None)
        self.keys.append(self._key)
        self.sources.append(tensor)
        self.buffers.append(buffer)
        self._of_memory[key] = buffer
        return buffer


def _copy_tensors(copies: list[Copy]) -> None:
    with torch.no_grad():
        for source, target in copies:
            target.copy_(source)


class TakeOver:
    """Brings saved values back into what is live, so that nothing live shares memory with what was saved.

    A live tensor keeps its identity and storage if it corresponds to a saved one of the same shape and type,
    directly or in a dict: optimizers, parameters and compiled code refer to it. One object serves the parts
    of one tree.
    """

    def __init__(self) -> None:
        self._memo: dict[int, Any] = {}
        self._written: dict[int, torch.Tensor] = {}

    def value(self, saved: Any, live: Any = None) -> Any:
        """The saved value, in live memory: the replacement for `live`."""
        kind = type(saved)
        if kind in IMMUTABLE_TYPES:
            return saved
        seen = self._memo.get(id(saved))
        if seen is not None:
            return seen
        if kind is dict:
            counterpart = live if isinstance(live, dict) else {}
            result: Any = {}
            self._memo[id(saved)] = result
            for key, item in saved.items():
                result[key] = self.value(item, counterpart.get(key))
        elif kind is list:
            result = []
            self._memo[id(saved)] = result
            result.extend(map(self.value, saved))
        elif kind is tuple:
            result = tuple(map(self.value, saved))
        elif is_plain_tensor(saved):
            result = self._tensor(saved, live)
        else:
            result = copy.deepcopy(saved, self._memo)
        self._memo[id(saved)] = result
        return result

    def _tensor(self, saved: torch.Tensor, live: Any) -> torch.Tensor:
        if not is_plain_tensor(live) or not _alike(saved, live) or id(live) in self._written or not _writable(live):
            return saved.detach().to(getattr(saved, _DEVICE_ATTRIBUTE, saved.device), copy=True)
        self._written[id(live)] = live
        with torch.no_grad():
            live.copy_(saved)
        assert isinstance(live, torch.Tensor)
        return live


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype


def _writable(tensor: torch.Tensor) -> bool:
    """Whether it can be written: not where two elements are one in memory, as in an expanded tensor; nor outside of
    inference mode, if it was made in that.
    """
    if tensor.is_inference() and not torch.is_inference_mode_enabled():
        return False
    return not any(step == 0 and length > 1 for step, length in zip(tensor.stride(), tensor.shape, strict=True))
