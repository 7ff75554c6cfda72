"""Sync: the sources of a round send their state to the receivers that the driver named, and to no one else.

There is one source for each position in a replica; where replicas are single workers, there is one. A worker's own
opinion never decides whether it receives: with Horovod's skip_sync that deadlocks, or corrupts its sampler (its issues
3494 and 3399).

What travels, from the source through every receiver in turn (`edriver.worker.sync.relay`):

    1. a record, through the round's store, which authenticates its callers: how long the stream is, where in it the
       tensors end, the SHA-256 of what follows them, and whether that needs classes
    2. the stream: the elements of all tensors (packing.py); then an outline of each tensor and the tree
       without its tensors, both pickled

No memory is taken for a length, and nothing unpickled, that the record does not vouch for: what a peer sends is trusted
for the elements of tensors alone, and only over a connection that is proven (group/proven_pairs.py). Where the
state holds nothing but tensors and plain values, no class is looked up, whatever data arrives.

Tensors are never pickled, and two that are the same memory travel once. A receiver gathers everything aside first: a
source that is lost on the way leaves the receiver's own state as it was.

Other holders send nothing. What bounds a sync is the one link into each receiver, which a single source fills, and
with several receivers each link is used once anyway; while holders may differ in what is not made equal by training
(BatchNorm's buffers, plain objects), so they could not serve all of it.
"""

from __future__ import annotations

import ctypes
import hashlib
import hmac
import io
import pickle
import struct
from collections import Counter, OrderedDict
from typing import Any, BinaryIO, Final, NamedTuple, cast

import cloudpickle
import torch

from edriver.model.plan import Assignment
from edriver.worker import context
from edriver.worker.backend import torch_groups
from edriver.worker.backend.process_modes import without_tensor_modes
from edriver.worker.copies.snapshot import belongs_to, is_plain_tensor, memory_key
from edriver.worker.errors import PeerLostError
from edriver.worker.sync import relay
from edriver.worker.sync.packing import ALIGNMENT_BYTES, Layout, elements_in, packed
from edriver.worker.sync.receiving import ReceivingMemory
from edriver.worker.sync.relay import Downstream, Upstream

_RECORD_FORMAT: Final = struct.Struct("!QQ32s?")
_LONG_RECORD_FORMAT: Final = struct.Struct("!QQ32s?I")
"""Where pieces are not of the usual length: in long chains."""

_PLAIN_CLASSES: Final = (OrderedDict, torch.Size, torch.dtype, complex)
"""What a state of tensors and plain values is made of beside what pickle knows on its own."""

_CONTAINERS: Final = (dict, OrderedDict, list, tuple)

_PLAIN_NAMES: Final = {("collections", "OrderedDict"), ("torch", "Size"), ("builtins", "complex")}


def sync_state(tree: Any, assignment: Assignment) -> Any | None:
    """Send the tree, receive it, or do nothing, according to this worker's place in the round.

    Workers of one position in their replicas make up a chain of their own, and all chains are served at the same time.

    Args:
        tree: the state of the source, any nesting of dicts, lists and tuples that may refer to live
            tensors; it is read before this returns and never written to. What receivers pass is not looked
            at.
        assignment: this worker's place.

    Returns:
        On a receiver the source's tree, whose tensors are the caller's own, in host memory; on all others None.

    Raises:
        TypeError: the tree holds a sparse, quantized or sharded tensor.
        RuntimeError: the connection to a peer broke, or what came is not what the source has recorded.
    """
    size = assignment.replica_size
    position = assignment.position
    receivers = (rank for rank in assignment.receivers if rank % size == position)
    return send_along((assignment.sources[position], *receivers), tree, assignment)


def send_along(chain: tuple[int, ...], tree: Any, assignment: Assignment) -> Any | None:
    """The same along a chain of ranks: the first of them sends. All members of the round call this.

    Args:
        chain: that this worker is in, or any chain that it is not in.
        tree: see `sync_state`.
        assignment: see `sync_state`.
    """
    key = _next_key(assignment, chain[0])
    if len(chain) == 1 or assignment.rank not in chain:
        return None
    at = chain.index(assignment.rank)
    with without_tensor_modes():
        if at == 0:
            _send(tree, chain, key)
            return None
        return _receive(chain[at - 1], chain[at + 1] if at + 1 < len(chain) else None, key)


def _next_key(assignment: Assignment, source: int) -> str:
    """Where the store has the record of this sync; each member of a round counts them, also those that it is not in."""
    number = context.current.counters.next("sync", assignment.round_id)
    return f"edriver/sync/{assignment.round_id}/{number}/{source}"


class SyncRecord(NamedTuple):
    """What the source vouches for.

    Attributes:
        length: of the stream, in bytes.
        end: where in it the tensors end and the pickled part begins.
        digest: the SHA-256 of the pickled part.
        classes: whether that needs classes or functions: the state holds some.
        piece: bytes that are sent at a time.
    """

    length: int
    end: int
    digest: bytes
    classes: bool
    piece: int

    def text(self) -> bytes:
        """As the store has it."""
        if self.piece == relay.PIECE_BYTES:
            return _RECORD_FORMAT.pack(*self[:-1])
        return _LONG_RECORD_FORMAT.pack(*self)

    @staticmethod
    def read(text: bytes) -> SyncRecord:
        """Decode a record.

        Raises:
            PeerLostError: the text is not a record.
        """
        record = None
        if len(text) == _RECORD_FORMAT.size:
            length, end, digest, classes = _RECORD_FORMAT.unpack(text)
            record = SyncRecord(length, end, digest, classes, relay.PIECE_BYTES)
        elif len(text) == _LONG_RECORD_FORMAT.size:
            record = SyncRecord(*_LONG_RECORD_FORMAT.unpack(text))
        if record is not None and record.end <= record.length and record.piece > 0:
            return record
        raise PeerLostError("the source's record of the sync is not one")


class TensorOutline(NamedTuple):
    """The metadata of a tensor.

    Attributes:
        start: the position of its elements in the stream.
        dtype: the type of its elements.
        shape: its shape.
        device_type: the type of the device that it belongs to.
        requires_grad: as in torch.
        is_parameter: whether it is a torch.nn.Parameter.
        inside: whether an object holds it, rather than the tree itself: it then gets separate memory, which the object
            may inspect or keep.
    """

    start: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    device_type: str
    requires_grad: bool
    is_parameter: bool
    inside: bool


class _TreePickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    """Pickles a tree, putting its tensors into a layout.

    Args:
        file: where to.
        occurrences: how often each tensor stands in the tree itself, by its id: what else is met is in an object.
    """

    def __init__(self, file: BinaryIO, occurrences: Counter[int]) -> None:
        super().__init__(file)
        self.layout = Layout()
        self.outlines: list[TensorOutline] = []
        self.classes = False
        self._occurrences = occurrences
        self._index_of: dict[tuple[object, ...], int] = {}

    def persistent_id(self, obj: Any) -> int | None:
        if not isinstance(obj, torch.Tensor):
            return None
        _refuse_special(obj)
        is_parameter, requires_grad = isinstance(obj, torch.nn.Parameter), obj.requires_grad
        self._occurrences[id(obj)] -= 1
        inside = self._occurrences[id(obj)] < 0
        # The same memory as a parameter and as a plain tensor (of a state_dict) stays two things.
        key = (*memory_key(obj), requires_grad, is_parameter)
        index = self._index_of.setdefault(key, len(self.outlines))
        if index == len(self.outlines):
            start = self.layout.add(obj)
            shape, device = tuple(obj.shape), obj.device.type
            self.outlines.append(TensorOutline(start, obj.dtype, shape, device, requires_grad, is_parameter, inside))
        elif inside:
            self.outlines[index] = self.outlines[index]._replace(inside=True)
        return index

    def reducer_override(self, obj: Any) -> Any:
        # Asked for all that pickle cannot write on its own.
        if type(obj) not in _PLAIN_CLASSES and not any(obj is plain for plain in _PLAIN_CLASSES):
            self.classes = True
        return super().reducer_override(obj)


def _refuse_special(tensor: torch.Tensor) -> None:
    if not is_plain_tensor(tensor):
        raise TypeError(
            f"a {type(tensor).__name__} with layout {tensor.layout} cannot be synced: the state may hold "
            "dense tensors of torch's own class only"
        )


def _occurrences_in(tree: Any) -> Counter[int]:
    """How often each tensor stands in a tree of dicts, lists and tuples, by its id: as often as a pickler meets it."""
    found: Counter[int] = Counter()
    seen: set[int] = set()
    parts = [tree]
    while parts:
        part = parts.pop()
        kind = type(part)
        if isinstance(part, torch.Tensor):
            found[id(part)] += 1
        elif kind in _CONTAINERS and id(part) not in seen:
            seen.add(id(part))
            parts.extend(part.values() if issubclass(kind, dict) else part)
    return found


class _Rehearsal(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    """Pickles a value to nowhere, without the elements of its tensors and arrays.

    Attributes:
        large: those tensors and arrays.
    """

    def __init__(self) -> None:
        super().__init__(_Nowhere(), buffer_callback=lambda _: None)
        self.large: list[Any] = []

    def persistent_id(self, obj: Any) -> int | None:
        if not isinstance(obj, torch.Tensor):
            return None
        _refuse_special(obj)
        self.large.append(obj)
        return 0

    def reducer_override(self, obj: Any) -> Any:
        if type(obj).__name__ == "ndarray" and type(obj).__module__ == "numpy":
            self.large.append(obj)
        return super().reducer_override(obj)


class _Nowhere:
    """A file that keeps nothing.

    Attributes:
        length: of what was written to it, in bytes.
    """

    def __init__(self) -> None:
        self.length = 0

    def write(self, data: bytes) -> int:
        self.length += len(data)
        return len(data)


def rehearse(value: Any) -> list[Any]:
    """Pickle a value as a sync does, and forget it; returns the tensors and arrays that it holds.

    Raises:
        Exception: it cannot be pickled; or it holds a sparse, quantized or sharded tensor (TypeError).
    """
    pickler = _Rehearsal()
    pickler.dump(value)
    return pickler.large


def stream_length(tree: Any) -> int:
    """The number of bytes that a sync of this tree sends, but for the outlines of its tensors.

    Raises:
        Exception: it cannot be pickled; or it holds a sparse, quantized or sharded tensor (TypeError).
    """
    nowhere = _Nowhere()
    with without_tensor_modes():
        pickler = _TreePickler(cast(BinaryIO, nowhere), Counter())
        pickler.dump(tree)
    return pickler.layout.length + nowhere.length


class _PlainUnpickler(pickle.Unpickler):
    """Knows no class but those of plain values."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _PLAIN_NAMES:
            return super().find_class(module, name)
        if module == "torch" and isinstance(found := getattr(torch, name, None), torch.dtype):
            return found
        raise pickle.UnpicklingError(f"{module}.{name} does not belong in a state of tensors and plain values")


class _TreeUnpickler(_PlainUnpickler):
    """Puts a tree's tensors back.

    Args:
        file: what the source vouches for.
        tensors: in the order of their outlines.
        classes: whether the source's state holds classes or functions.
    """

    def __init__(self, file: BinaryIO, tensors: list[torch.Tensor], classes: bool) -> None:
        super().__init__(file)
        self._tensors = tensors
        self._classes = classes

    def find_class(self, module: str, name: str) -> Any:
        return pickle.Unpickler.find_class(self, module, name) if self._classes else super().find_class(module, name)

    def persistent_load(self, pid: int) -> torch.Tensor:
        return self._tensors[pid]


def _send(tree: Any, chain: tuple[int, ...], key: str) -> None:
    file = io.BytesIO()
    pickler = _TreePickler(file, _occurrences_in(tree))
    pickler.dump(tree)
    # As plain tuples: 5,000 instances of a class take four times as long.
    text = bytearray(pickle.dumps([tuple(outline) for outline in pickler.outlines]) + file.getbuffer())
    text.extend(bytes(-len(text) % ALIGNMENT_BYTES))  # as it travels
    layout = pickler.layout
    end = layout.add(torch.frombuffer(text, dtype=torch.uint8))
    piece = relay.piece_bytes(layout.length, len(chain) - 1)
    record = SyncRecord(layout.length, end, hashlib.sha256(text).digest(), pickler.classes, piece)
    torch_groups.default_store().set(key, record.text())  # type: ignore[arg-type]  # takes bytes as well
    window = relay.window_of(piece)
    downstream = Downstream(chain[1], window)
    # Each by itself, so that it comes from the heap, of which a process that trains has some free; the others wait.
    buffers = [torch.empty(min(layout.length, piece), dtype=torch.uint8, device="cpu") for _ in range(window + 1)]
    for part in packed(layout, piece, buffers):
        downstream.pass_on(part)
    downstream.finish()


def _receive(source: int, receiver: int | None, key: str) -> Any:
    """Receive the stream from one rank, and pass it on to another, if there is one; returns the tree in it."""
    record = SyncRecord.read(bytes(torch_groups.default_store().get(key)))
    stream = context.current.part(ReceivingMemory).take(record.length)
    window = relay.window_of(record.piece)
    Upstream(source, window).receive(relay.pieces_of(stream, record.piece), Downstream(receiver, window))
    return _unpacked(stream, record)


def _unpacked(stream: torch.Tensor, record: SyncRecord) -> Any:
    """The tree in a stream.

    Raises:
        PeerLostError: the pickled part is not what the source has recorded: nothing of it has been looked at.
    """
    text = ctypes.string_at(stream.data_ptr() + record.end, record.length - record.end)
    if not hmac.compare_digest(hashlib.sha256(text).digest(), record.digest):
        raise PeerLostError("the data that arrived in the sync differs from what the source sent")
    file = io.BytesIO(text)
    outlines = [TensorOutline(*fields) for fields in _PlainUnpickler(file).load()]
    return _TreeUnpickler(file, _placed(stream, outlines), record.classes).load()


def _placed(stream: torch.Tensor, outlines: list[TensorOutline]) -> list[torch.Tensor]:
    """The tensors in the received stream, where they lie in it: in host memory."""
    typed = {dtype: stream.view(dtype) for dtype in {outline.dtype for outline in outlines}}
    return [_of_kind(elements_in(typed[outline.dtype], outline.start, outline.shape), outline) for outline in outlines]


def _of_kind(elements: torch.Tensor, outline: TensorOutline) -> torch.Tensor:
    if outline.inside:
        elements = elements.to(outline.device_type, copy=True)
    if outline.is_parameter:
        elements = torch.nn.Parameter(elements, requires_grad=outline.requires_grad)
    elif outline.requires_grad:
        elements.requires_grad_()
    return elements if outline.inside or outline.device_type == "cpu" else belongs_to(elements, outline.device_type)
