"""Sync: the source of a round sends its state to the receivers that the driver named, and to no one else.

What travels, over torch.distributed (the default group, point to point):

    1. two int64: the lengths of what follows
    2. the outline: dtype, shape and device of every tensor (pickled)
    3. the tree without its tensors (cloudpickle)
    4. the tensors' elements, as one stream of bytes

All of it in pieces of at most CHUNK_BYTES.

Tensors are never pickled, and two that are the same memory travel once. A receiver gathers everything aside
first: a source that is lost on the way leaves the receiver's own state as it was.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import cloudpickle
import torch
import torch.distributed as dist

from edriver.worker.assignment import Assignment
from edriver.worker.snapshot import is_plain_tensor, memory_key

CHUNK_BYTES = 256 * 2**10
"""How much is sent at a time; two such buffers are filled and sent in turns.

Small, because Gloo never wakes the sender of a half-written message when its receiver dies or is cut off (torch 2.13:
signalException in gloo/transport/tcp/pair.cc passes over the queue of unfinished writes). A piece that fits into the
socket's buffer is written at once: of 20 receivers killed in mid-sync none left its source hanging; with 1 MiB pieces
one did.
"""

ALIGNMENT = 64
"""Every tensor starts at a multiple of this many bytes in the stream, so that it can be used where it
lies."""


def sync_state(tree: Any, place: Assignment) -> Any | None:
    """Send the tree, receive it, or do nothing, as this worker's place in the round says.

    Args:
        tree: the state of the source, any nesting of dicts, lists and tuples that may refer to live
            tensors; it is read before this returns and never written to. What receivers pass is not looked
            at.
        place: this worker's place.

    Returns:
        On a receiver the source's tree, whose tensors are the caller's own; on all others None.

    Raises:
        TypeError: the tree holds a sparse, quantized or sharded tensor.
        RuntimeError: the connection to a peer broke.
    """
    if not place.receivers:
        return None
    if place.rank == place.source:
        _send(tree, place.receivers)
        return None
    if place.rank in place.receivers:
        return _receive(place.source)
    return None


@dataclass(frozen=True, slots=True)
class TensorOutline:
    """What is known of a tensor before its elements arrive."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    device_type: str
    requires_grad: bool
    is_parameter: bool

    @property
    def nbytes(self) -> int:
        """How many bytes its elements have."""
        return self.dtype.itemsize * torch.Size(self.shape).numel()


def offsets(outlines: list[TensorOutline]) -> list[int]:
    """Where each tensor starts in the stream of bytes, and at the end the stream's length."""
    result = [0]
    for outline in outlines:
        result.append(-(-(result[-1] + outline.nbytes) // ALIGNMENT) * ALIGNMENT)
    return result


class _TreePickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    """Pickles a tree, taking its tensors out."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file)
        self.tensors: list[torch.Tensor] = []
        self._index_of: dict[tuple[object, ...], int] = {}

    def persistent_id(self, obj: Any) -> int | None:
        if not isinstance(obj, torch.Tensor):
            return None
        if not is_plain_tensor(obj):
            raise TypeError(
                f"a {type(obj).__name__} with layout {obj.layout} cannot be synced: the state may hold "
                "dense tensors of torch's own class only"
            )
        # The same memory as a parameter and as a plain tensor (of a state_dict) stays two things.
        key = (*memory_key(obj), obj.requires_grad, isinstance(obj, torch.nn.Parameter))
        index = self._index_of.setdefault(key, len(self.tensors))
        if index == len(self.tensors):
            self.tensors.append(obj)
        return index


class _TreeUnpickler(pickle.Unpickler):
    """Puts a tree's tensors back. What it reads comes from a member of this run over the data plane."""

    def __init__(self, file: BinaryIO, tensors: list[torch.Tensor]) -> None:
        super().__init__(file)
        self._tensors = tensors

    def persistent_load(self, pid: int) -> torch.Tensor:
        return self._tensors[pid]


def _send(tree: Any, receivers: tuple[int, ...]) -> None:
    file = io.BytesIO()
    pickler = _TreePickler(file)
    pickler.dump(tree)
    outlines = [_outline(tensor) for tensor in pickler.tensors]
    parts = [pickle.dumps(outlines), file.getvalue()]
    _send_to_all(torch.tensor([len(part) for part in parts]), receivers)
    for part in parts:
        content = torch.frombuffer(bytearray(part), dtype=torch.uint8)
        for first in range(0, len(part), CHUNK_BYTES):
            _send_to_all(content[first : first + CHUNK_BYTES], receivers)
    _send_stream(pickler.tensors, offsets(outlines), receivers)


def _send_to_all(tensor: torch.Tensor, receivers: tuple[int, ...]) -> None:
    for work in _start_sending(tensor, receivers):
        work.wait()


def _start_sending(tensor: torch.Tensor, receivers: tuple[int, ...]) -> list[dist.Work]:
    works = [dist.isend(tensor, receiver) for receiver in receivers]
    return [work for work in works if work is not None]


def _send_stream(tensors: list[torch.Tensor], starts: list[int], receivers: tuple[int, ...]) -> None:
    total = starts[-1]
    chunks = [torch.zeros(min(CHUNK_BYTES, total), dtype=torch.uint8) for _ in range(2)]
    under_way: list[list[dist.Work]] = [[], []]
    pieces = _pieces(tensors, starts)
    piece = next(pieces, None)
    for turn, first in enumerate(range(0, total, CHUNK_BYTES)):
        for work in under_way[turn % 2]:
            work.wait()
        chunk = chunks[turn % 2][: min(CHUNK_BYTES, total - first)]
        while piece is not None and piece[0] < first + len(chunk):
            at, elements = piece
            end = at - first + len(elements)
            fits = min(end, len(chunk)) - (at - first)
            chunk[at - first : at - first + fits].copy_(elements[:fits])
            piece = (at + fits, elements[fits:]) if fits < len(elements) else next(pieces, None)
        under_way[turn % 2] = _start_sending(chunk, receivers)
    for work in [*under_way[0], *under_way[1]]:
        work.wait()


def _pieces(tensors: list[torch.Tensor], starts: list[int]) -> Iterator[tuple[int, torch.Tensor]]:
    """Each tensor's place in the stream and its elements as bytes, empty ones left out."""
    for start, tensor in zip(starts, tensors, strict=False):
        if tensor.numel():
            elements = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
            yield start, elements.reshape(-1).view(torch.uint8)


def _receive(source: int) -> Any:
    lengths = torch.zeros(2, dtype=torch.int64)
    dist.recv(lengths, source)
    parts = [_receive_bytes(length, source) for length in lengths.tolist()]
    outlines: list[TensorOutline] = pickle.loads(parts[0].numpy().tobytes())  # noqa: S301  a member of this run, the data plane
    starts = offsets(outlines)
    stream = _receive_bytes(starts[-1], source)
    tensors = [_placed(stream, start, outline) for start, outline in zip(starts, outlines, strict=False)]
    return _TreeUnpickler(io.BytesIO(parts[1].numpy().tobytes()), tensors).load()


def _receive_bytes(length: int, source: int) -> torch.Tensor:
    result = torch.empty(length, dtype=torch.uint8)
    for first in range(0, length, CHUNK_BYTES):
        dist.recv(result[first : first + CHUNK_BYTES], source)
    return result


def _outline(tensor: torch.Tensor) -> TensorOutline:
    return TensorOutline(
        dtype=tensor.dtype,
        shape=tuple(tensor.shape),
        device_type=tensor.device.type,
        requires_grad=tensor.requires_grad,
        is_parameter=isinstance(tensor, torch.nn.Parameter),
    )


def _placed(stream: torch.Tensor, start: int, outline: TensorOutline) -> torch.Tensor:
    """A tensor in the received stream, on its device."""
    elements = stream[start : start + outline.nbytes].view(outline.dtype).reshape(outline.shape)
    elements = elements.to(outline.device_type)
    if outline.is_parameter:
        return torch.nn.Parameter(elements, requires_grad=outline.requires_grad)
    return elements.requires_grad_(outline.requires_grad)
