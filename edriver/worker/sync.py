"""Sync: the source of a round sends its state to the receivers that the driver named, and to no one else.

What travels, from the source through every receiver in turn (`edriver.worker.relay`):

    1. two int64: the stream's length, and where in it the tensors end
    2. the stream: the elements of all tensors (`edriver.worker.packing`); then an outline of each tensor and the tree
       without its tensors, both pickled

Tensors are never pickled, and two that are the same memory travel once. A receiver gathers everything aside first: a
source that is lost on the way leaves the receiver's own state as it was.

Other holders send nothing. What bounds a sync is the one link into each receiver, which a single source fills, and
with several receivers each link is used once anyway; while holders may differ in what is not made equal by training
(BatchNorm's buffers, plain objects), so they could not serve all of it.
"""

from __future__ import annotations

import ctypes
import io
import pickle
from typing import Any, BinaryIO, NamedTuple

import cloudpickle
import torch

from edriver.worker import relay
from edriver.worker.assignment import Assignment
from edriver.worker.packing import Layout, elements_in, packed
from edriver.worker.relay import Downstream, Upstream, staging
from edriver.worker.snapshot import belongs_to, is_plain_tensor, memory_key


def sync_state(tree: Any, place: Assignment) -> Any | None:
    """Send the tree, receive it, or do nothing, as this worker's place in the round says.

    Args:
        tree: the state of the source, any nesting of dicts, lists and tuples that may refer to live
            tensors; it is read before this returns and never written to. What receivers pass is not looked
            at.
        place: this worker's place.

    Returns:
        On a receiver the source's tree, whose tensors are the caller's own, in host memory; on all others None.

    Raises:
        TypeError: the tree holds a sparse, quantized or sharded tensor.
        RuntimeError: the connection to a peer broke.
    """
    chain = (place.source, *place.receivers)
    if len(chain) == 1 or place.rank not in chain:
        return None
    at = chain.index(place.rank)
    downstream = Downstream(chain[at + 1] if at + 1 < len(chain) else None)
    if at == 0:
        _send(tree, downstream)
        return None
    return _receive(Upstream(chain[at - 1]), downstream)


class TensorOutline(NamedTuple):
    """What is known of a tensor beside its elements.

    Attributes:
        start: where its elements start in the stream.
        dtype: of its elements.
        shape: of the tensor.
        device_type: where it belongs.
        requires_grad: as torch has it.
        is_parameter: whether it is a torch.nn.Parameter.
    """

    start: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    device_type: str
    requires_grad: bool
    is_parameter: bool


class _TreePickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    """Pickles a tree, putting its tensors into a layout."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file)
        self.layout = Layout()
        self.outlines: list[TensorOutline] = []
        self._index_of: dict[tuple[object, ...], int] = {}

    def persistent_id(self, obj: Any) -> int | None:
        if not isinstance(obj, torch.Tensor):
            return None
        if not is_plain_tensor(obj):
            raise TypeError(
                f"a {type(obj).__name__} with layout {obj.layout} cannot be synced: the state may hold "
                "dense tensors of torch's own class only"
            )
        is_parameter, requires_grad = isinstance(obj, torch.nn.Parameter), obj.requires_grad
        # The same memory as a parameter and as a plain tensor (of a state_dict) stays two things.
        key = (*memory_key(obj), requires_grad, is_parameter)
        index = self._index_of.setdefault(key, len(self.outlines))
        if index == len(self.outlines):
            start = self.layout.add(obj)
            outline = TensorOutline(start, obj.dtype, tuple(obj.shape), obj.device.type, requires_grad, is_parameter)
            self.outlines.append(outline)
        return index


class _TreeUnpickler(pickle.Unpickler):
    """Puts a tree's tensors back. What it reads comes from a member of this run over the data plane."""

    def __init__(self, file: BinaryIO, tensors: list[torch.Tensor]) -> None:
        super().__init__(file)
        self._tensors = tensors

    def persistent_load(self, pid: int) -> torch.Tensor:
        return self._tensors[pid]


def _send(tree: Any, downstream: Downstream) -> None:
    file = io.BytesIO()
    pickler = _TreePickler(file)
    pickler.dump(tree)
    # As plain tuples: 5,000 objects of a class of ours take four times as long.
    text = bytearray(pickle.dumps([tuple(outline) for outline in pickler.outlines]) + file.getbuffer())
    layout = pickler.layout
    end = layout.add(torch.frombuffer(text, dtype=torch.uint8))
    downstream.pass_on(_as_bytes(torch.tensor([layout.length, end])))
    buffers = staging(min(layout.length, relay.PIECE_BYTES * (relay.WINDOW + 1)))
    for piece in packed(layout, relay.PIECE_BYTES, relay.pieces_of(buffers)):
        downstream.pass_on(piece)
    downstream.settle()


def _receive(upstream: Upstream, downstream: Downstream) -> Any:
    lengths = torch.zeros(2, dtype=torch.int64)
    upstream.receive([_as_bytes(lengths)], downstream)
    length, end = lengths.tolist()
    stream = staging(length)
    upstream.receive(relay.pieces_of(stream), downstream)
    file = io.BytesIO(ctypes.string_at(stream.data_ptr() + end, length - end))
    outlines = [TensorOutline(*fields) for fields in pickle.load(file)]  # noqa: S301  a member of this run, the data plane
    return _TreeUnpickler(file, _placed(stream, outlines)).load()


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.uint8)


def _placed(stream: torch.Tensor, outlines: list[TensorOutline]) -> list[torch.Tensor]:
    """The tensors in the received stream, where they lie in it: in host memory."""
    typed = {dtype: stream.view(dtype) for dtype in {outline.dtype for outline in outlines}}
    return [_of_kind(elements_in(typed[outline.dtype], outline.start, outline.shape), outline) for outline in outlines]


def _of_kind(elements: torch.Tensor, outline: TensorOutline) -> torch.Tensor:
    if outline.is_parameter:
        elements = torch.nn.Parameter(elements, requires_grad=outline.requires_grad)
    elif outline.requires_grad:
        elements.requires_grad_()
    return elements if outline.device_type == "cpu" else belongs_to(elements, outline.device_type)
