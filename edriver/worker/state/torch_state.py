"""TorchState: models, optimizers, schedulers and samplers, beside plain objects.

Each attribute whose value has a handler (`edriver.worker.state.handlers`) is captured and loaded through it; the
others are plain data, as in ObjectState, in which tensors may occur. A save copies all tensors, at memory
speed, into buffers that were allocated by the first one.

A boundary copies no parameter and no optimizer state. They are those of the boundary as long as no optimizer has begun
a step and no tensor's version counter (torch's own, of writes in place) has moved. A write that this counter does not
see (through `.data`) outside an optimizer's step is not seen here either.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from operator import is_
from typing import TYPE_CHECKING, Any, ClassVar, Final

import torch
from torch.optim import Optimizer

from edriver.worker import context
from edriver.worker.backend.heap import HEAP_BYTES, fill_heap
from edriver.worker.backend.tensors import writes
from edriver.worker.copies.buffer_copies import BufferCopies
from edriver.worker.copies.random_states import RandomStates
from edriver.worker.copies.side_stream import SideCopies, SideStream
from edriver.worker.copies.small_copy import SMALL_BYTES
from edriver.worker.copies.snapshot import (
    IMMUTABLE_TYPES,
    Loan,
    SnapshotBuffers,
    TakeOver,
    is_plain_tensor,
    memory_key,
)
from edriver.worker.reports import SamplesDone
from edriver.worker.sampler.elastic_sampler import ElasticSampler
from edriver.worker.sampler.equal_batches import TrainingBatches, watch_loaders
from edriver.worker.state.device_mark import DeviceMark, Event
from edriver.worker.state.first_look import refuse_sharded, refuse_uninitialized, say_unheld, say_untrained
from edriver.worker.state.generators import register_generators
from edriver.worker.state.handlers import ModuleHandler, OptimizerHandler, StateHandler, handler_for
from edriver.worker.state.object_state import ObjectState, check_names
from edriver.worker.state.step_watch import STEP_BEGUN, StepWatch
from edriver.worker.state.tensor_places import TensorPlaces
from edriver.worker.watch.comm_hooks import watch_comm_hooks
from edriver.worker.watch.script_reports import ScriptReports
from edriver.worker.watch.uneven_inputs import say_joined, watch_joins

if TYPE_CHECKING:
    from edriver.worker.checkpoints.shard_planners import ShardPlace
    from edriver.worker.sync.receiving import ReceivingMemory
logger = logging.getLogger("edriver.worker")

_DEVICE_BEHIND: Final = "the device had not reached the last boundary: call commit() now and then"
_OVERWRITTEN: Final = (
    "parameters or attributes had been replaced, or written to outside of an optimizer's step, since the last "
    "boundary: pass a boundary right after that, or call commit() now and then"
)


register_generators()


def recorded() -> Event | None:
    """An event behind all work submitted to the current CUDA device; None where nothing is to be waited for."""
    # While a graph is captured, nothing is executed: there is nothing to wait for.
    if not torch.cuda.is_initialized() or torch.cuda.is_current_stream_capturing():  # type: ignore[no-untyped-call]
        return None
    event: Event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    return event


class TorchState(ObjectState):
    """A state with a model and an optimizer.

        state = TorchState(model, optimizer, scheduler=scheduler, sampler=sampler, epoch=0)

    Restoring and syncing write into the existing tensors, so references to a parameter, to an
    optimizer's state or to an attribute's tensor stay valid. After a restore all gradients are None. The
    training function may wrap a model in DistributedDataParallel, also as `state.model =
    DistributedDataParallel(state.model)`: edriver removes the wrapper at the start of the next round.

    Args:
        model: the model. May be set later.
        optimizer: the model's optimizer. May be set later.
        checkpoint: the folder, or a URL that fsspec supports, to which checkpoints are written, and from which the
            newest one is loaded once no worker holds the state; None: no checkpoints. It belongs to one run at a time.
            Loading executes code from a checkpoint (pickle): let nobody else write there. From a local folder, edriver
            loads only checkpoints that no account but this one and root can have written.
        every: the interval between two checkpoints: a timedelta, or a number of steps.
        keep: the number of checkpoints to keep.
        from_rank_0: see ObjectState.
        objects: all other values, by name: schedulers, samplers, more models, plain data.

    Attributes:
        steps_made: with checkpoints, the number of boundaries that training has passed, in all runs.

    Raises:
        TypeError: a value cannot be kept (FSDP, ZeroRedundancyOptimizer, DTensor, DistributedSampler, a lock, lazy
            modules that have not been called); the message says why.
        ValueError: a name starts with an underscore or is an attribute of this class; `every` or `keep` is not
            positive.
    """

    _handlers: dict[str, StateHandler]

    _optimizer_remedy: ClassVar = (
        "Give the state their optimizer, made before edriver.run, as in TorchState(model, optimizer)"
    )

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        optimizer: Optimizer | None = None,
        *,
        checkpoint: str | os.PathLike[str] | None = None,
        every: timedelta | int = timedelta(minutes=10),
        keep: int = 3,
        from_rank_0: Iterable[str] = (),
        **objects: Any,
    ) -> None:
        if checkpoint is not None:
            objects = {**objects, "steps_made": 0}
        self._hold({"model": model, "optimizer": optimizer, **objects}, from_rank_0)
        if checkpoint is not None:
            from edriver.worker.state.on_disk import StateOnDisk  # torch.distributed.checkpoint takes a second

            self._disk = StateOnDisk(self, self._handlers, checkpoint, every, keep)

    def _hold(self, values: Mapping[str, Any], from_rank_0: Iterable[str] = ()) -> None:
        object.__setattr__(self, "_handlers", {})
        object.__setattr__(self, "_names", ())
        self._buffers = SnapshotBuffers(self._side())
        self._steps = StepWatch(before_step=self._step_begins)
        self._buffer_copies = BufferCopies()
        self._places = TensorPlaces()
        self._mark = DeviceMark(recorded)
        self._outdated = True
        self._lasting: list[torch.Tensor] = []
        self._counting: list[torch.Tensor] = []
        self._large: list[torch.Tensor] = []
        self._writes: list[int] | None = None
        self._begun = 0
        self._looked_around = False
        self._kept_values: list[Any] = []
        self._receiving: ReceivingMemory | None = None
        watch_joins()
        watch_loaders()
        watch_comm_hooks()
        _refuse_hidden(values)
        super()._hold(values, from_rank_0)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._names:
            handler = None if type(value) in IMMUTABLE_TYPES else self._handler_of(name, value)
            refuse_uninitialized(name, value)
            if handler is None:
                self._handlers.pop(name, None)
            else:
                self._handlers[name] = handler
            if isinstance(handler, OptimizerHandler):
                handler.models = functools.partial(_models, self._handlers)
            elif isinstance(handler, ModuleHandler):
                self._watch_modes()
        object.__setattr__(self, name, value)
        if name in self._names and isinstance(value, Optimizer):
            self._steps.watch(h.value for h in self._handlers.values() if isinstance(h.value, Optimizer))
        if name in self._handlers:
            self._outdated = True

    def _refuse_unkept(self, name: str) -> None:
        if name not in self._handlers:
            super()._refuse_unkept(name)

    def _handler_of(self, name: str, value: object) -> StateHandler | None:
        """The handler of an attribute's value; None: it is plain data."""
        try:
            return handler_for(value)
        except TypeError as error:
            raise TypeError(f"the state's attribute {name!r} cannot be kept: {error}") from error

    def _side(self) -> SideCopies:
        """The copier of tensors that are not in host memory."""
        return SideStream()

    def samples_done(self) -> SamplesDone | None:
        """The progress of the first ElasticSampler among the attributes."""
        samplers = (h.value for h in list(self._handlers.values()) if isinstance(h.value, ElasticSampler))
        sampler = next(samplers, None)
        return None if sampler is None else sampler.samples_done()

    def half_done(self) -> bool:
        """Whether gradients have been accumulated since the last step of any of the state's optimizers."""
        return self._steps.pending

    def keep_small(self) -> None:
        """Copy the small values: attributes, buffers, optimizer options, states of random number generators."""
        if self._steps.adapt() or self._outdated:
            self._watch_tensors()
        self._large = []
        super().keep_small()
        self._exposed = self._exposed or self._steps.boundary()
        self._buffer_copies.keep()
        self._places.boundary()
        self._mark.set()
        self._writes = writes(self._counting + self._large)
        self._exposed = self._exposed or self._writes is None
        self._begun = self._steps.begun
        self._kept_values = [handler.value for handler in self._handlers.values()]

    def _note_modes(self, commits: bool = False) -> None:
        if not self._steps.watches or self._steps.begun != self._begun:
            self.computes_in.passed(commits)

    def _watch_modes(self) -> None:
        models = {name: handler for name, handler in self._handlers.items() if isinstance(handler, ModuleHandler)}
        self.computes_in.watch({name: handler.modes for name, handler in models.items()})

    def first_boundary(self) -> None:
        """Check again for sharded values, for what is trained and is not in the state, and unequal steps."""
        values: dict[str, object] = {name: handler.value for name, handler in self._handlers.items()}
        self._refuse_unsupported(values.values())
        say_untrained(values, self._optimizer_remedy)
        say_unheld(values, (getattr(self, name) for name in self._names), look_around=not self._looked_around)
        self._looked_around = True
        say_joined()
        self._places.first_boundary()
        self._watch_modes()

    def _refuse_unsupported(self, values: Iterable[object]) -> None:
        """Refuse what the training function has made of the state's models and optimizers."""
        refuse_sharded(values)

    def _step_begins(self) -> None:
        # A step with the partial gradients that an abort leaves would spoil the last boundary. So the host, which
        # runs ahead of the device on CUDA, waits for the gradients.
        if context.assignment().size > 1 and self._mark.wait():
            self.check_peers()
        context.current.part(ScriptReports).step_begins()
        context.current.part(TrainingBatches).step_begins()
        if self._places.assigned_before_step():
            self._steps.expose("a parameter's .data is assigned between a boundary and the optimizer's step")
        self._buffers.hold()

    def peer_lost(self) -> None:
        """Note how far the device's work has progressed, before its collectives are aborted."""
        self._mark.judge()

    def wait_for_device(self) -> bool:
        """On CUDA, wait for the device, so that a commit copies completed results."""
        return self._mark.wait()

    @property
    def clean(self) -> bool:
        """Whether parameters, optimizer state and large tensors are those of the last boundary."""
        return (
            super().clean
            and self._mark.reached
            and self._steps.begun == self._begun
            and len(self._kept_values) == len(self._handlers)
            and all(map(is_, self._kept_values, (handler.value for handler in self._handlers.values())))
            and self._writes is not None
            and self._writes == writes(self._counting + self._large)
            and not self._places.changed()
        )

    @property
    def why_torn(self) -> str:
        """Why parameters, optimizer state or large tensors are not those of the last boundary."""
        if not super().clean:
            return super().why_torn
        if self._steps.begun != self._begun:
            return STEP_BEGUN
        return _OVERWRITTEN if self._mark.reached else _DEVICE_BEHIND

    def return_to_boundary(self) -> None:
        """Go back to the last boundary, without restoring what only optimizers change; gradients become None."""
        self.clear_gradients()
        self._buffer_copies.bring_back()
        super().return_to_boundary()

    def save(self) -> None:
        """Save a copy of the whole state in host memory, also of tensors on a GPU (side_stream.py).

        Raises:
            TypeError: an attribute cannot be copied.
        """
        self._note_modes(commits=True)
        self._saved = self._buffers.copied(self._capture(), _Lasting(self._handlers))
        self.copied.commit_bytes = self._buffers.nbytes
        self._saved_random.keep()
        self._saved_modes = self.computes_in.noted

    def committed_parts(self) -> tuple[dict[str, Any], RandomStates, Loan]:
        """The last commit: its tree, the random number generators' states, and a loan of its tensors."""
        assert self._saved is not None, "it has just been committed"
        return self._saved, self._saved_random, self._buffers.lend()

    def shards_in(self, tree: dict[str, Any]) -> Mapping[int, ShardPlace]:
        """The places of shards in a tree of this state: each worker has all of it."""
        del tree
        return {}

    def _adopt(self, arrived: dict[str, Any]) -> None:
        # It shares nothing with the live state, and its memory is allocated already.
        self._saved = self._buffers.adopted(arrived)
        self.copied.received_bytes = self._buffers.nbytes
        self._saved_random.keep()
        self._saved_modes = self.computes_in.noted

    def restore(self) -> None:
        """Go back to the last save, if there is one; always set all gradients to None."""
        self.clear_gradients()
        if self._saved is not None:
            self._load(self._saved)
            self._saved_random.bring_back()
            self.computes_in.go_back(self._saved_modes)
            self.keep_small()

    def prepare(self) -> None:
        """In a worker that comes to others, who would wait for it: write to the memory that its first round takes.

        That is the memory for what a sync brings, for what the optimizer keeps, and for gradients. How much it is
        follows from the model and the optimizer; if that is wrong, what is missing is new memory in the round.
        """
        if context.place_in_replica() is None or context.in_round():
            return
        from edriver.worker.sync.packing import aligned
        from edriver.worker.sync.receiving import ReceivingMemory
        from edriver.worker.sync.sync import stream_length  # what it imports takes time, and is needed in syncs alone

        try:
            length = stream_length((self._capture(), self.computes_in.sent()))
            self._receiving = context.current.part(ReceivingMemory)
            made = [tensor for handler in self._optimizer_handlers() for tensor in handler.make_ready()]
            # What belongs on a GPU travels through host memory, too.
            self._receiving.make_ready(length + sum(aligned(tensor.nbytes) for tensor in made))
            trained = (t for h in self._optimizer_handlers() for t in h.trained() if t.device.type == "cpu")
            fill_heap(sum(tensor.nbytes for tensor in trained if tensor.nbytes < HEAP_BYTES))  # for gradients
        except Exception as error:  # noqa: BLE001  where nothing comes of it, the round takes longer
            logger.info("the state will be received into memory that is new then: %s", error)

    def _optimizer_handlers(self) -> Iterator[OptimizerHandler]:
        return (handler for handler in self._handlers.values() if isinstance(handler, OptimizerHandler))

    def sync(self) -> bool:
        """Send the state, or receive it: see ObjectState.sync. What was made ready for it is not needed afterwards."""
        try:
            return super().sync()
        finally:
            self._give_up_ready()

    def _give_up_ready(self) -> None:
        """Give back what `prepare` has made ready and nothing has taken."""
        if self._receiving is not None:
            self._receiving.give_up()
            self._receiving = None
            for handler in self._optimizer_handlers():
                handler.forget_ready()

    def reset(self) -> None:
        """Split samplers again, and remove the last round's DistributedDataParallel wrappers."""
        for name, handler in self._handlers.items():
            handler.reset()
            if getattr(self, name) is not handler.value:
                object.__setattr__(self, name, handler.value)
        self._outdated = True

    def clear_gradients(self) -> None:
        """Set the gradients of all models and optimizers to None."""
        for handler in self._handlers.values():
            handler.clear_gradients()
        self._steps.clear()

    def _capture(self) -> dict[str, Any]:
        """Map each name to whether its value has a handler, and to the captured state or the value itself."""
        parts = ((name, self._handlers.get(name)) for name in self._names)
        return {name: (False, getattr(self, name)) if h is None else (True, h.capture()) for name, h in parts}

    def _load(self, tree: dict[str, Any]) -> None:
        """Load a tree as `_capture` returns it, without keeping a reference to any part of it."""
        self._buffers.hold()  # a commit of what is about to be overwritten may be under way
        check_names(tree, self._names, "attribute")
        values = TakeOver()
        for name, (handled, part) in tree.items():
            if handled:
                _load_handled(self._handlers.get(name), name, getattr(self, name), part)
            else:
                setattr(self, name, values.value(part, getattr(self, name)))

    def _live_part(self, name: str) -> Any:
        handler = self._handlers.get(name)
        return (False, getattr(self, name)) if handler is None else (True, handler.keep())

    def _bring_back(self, parts: dict[str, Any]) -> None:
        values = TakeOver()
        for name, (handled, part) in parts.items():
            if handled:
                self._handlers[name].bring_back(part)
            else:
                setattr(self, name, values.value(part, getattr(self, name)))

    def _copy_special(self, value: Any) -> Any:
        if type(value) in IMMUTABLE_TYPES:
            return value
        if not is_plain_tensor(value):
            return NotImplemented
        if value.nbytes <= SMALL_BYTES:
            return value.detach().clone()
        self._large.append(value)
        return value

    def _watch_tensors(self) -> None:
        """Collect again the tensors that boundaries check: the script may have changed modules."""
        self._outdated = False
        handlers = self._handlers.values()
        self._lasting = list({id(t): t for handler in handlers for t in handler.lasting()}.values())
        self._counting = list({id(t): t for handler in handlers for t in handler.counting()}.values())
        self._places.watch(self._lasting)
        self._watch_modes()
        self._buffer_copies.watch(h.value for h in handlers if isinstance(h.value, torch.nn.Module))

    def _small(self, tree: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, part in tree.items() for value in _small_part(self._handlers.get(name), *part)}


class _Lasting:
    """Finds the tensors of a captured state that only optimizers change: parameters and their optimizer state.

    Args:
        handlers: the handlers of the state's values, by name.
    """

    def __init__(self, handlers: dict[str, StateHandler]) -> None:
        self._handlers = handlers

    @functools.cached_property
    def _memory(self) -> frozenset[tuple[object, ...]]:
        return frozenset(memory_key(t) for handler in self._handlers.values() for t in handler.lasting())

    def __call__(self, name: str, tensor: torch.Tensor) -> bool:
        handler = self._handlers.get(name)
        if handler is None:
            return False
        return isinstance(handler.value, Optimizer) or memory_key(tensor) in self._memory


def _load_handled(handler: StateHandler | None, name: str, live: object, part: Any) -> None:
    if handler is None:
        raise ValueError(
            f"the state's {name!r} is a {type(live).__name__} here and has its own state there: give every worker's "
            "state the same kinds of objects before edriver.run"
        )
    try:
        handler.load(part)
    except ValueError as error:
        raise ValueError(f"the state's {name!r} cannot be restored: {error}") from error


def _small_part(handler: StateHandler | None, handled: bool, part: Any) -> Iterator[Any]:
    """Yield the part of an attribute that takes part in the digest, if any."""
    if not handled:
        yield part
    elif handler is not None and (digest := handler.digest(part)) is not None:
        yield digest


def _models(handlers: dict[str, StateHandler]) -> dict[str, torch.nn.Module]:
    return {name: h.value for name, h in handlers.items() if isinstance(h.value, torch.nn.Module)}


def _refuse_hidden(objects: Mapping[str, Any]) -> None:
    """Refuse models and optimizers inside a container: treated as plain data, copies would replace them.

    Raises:
        TypeError: a container holds a model or an optimizer.
    """
    for name, value in objects.items():
        items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
        for item in items:
            if isinstance(item, torch.nn.Module | Optimizer):
                raise TypeError(
                    f"the state's {name!r} holds a {type(item).__name__} inside a {type(value).__name__}: give each "
                    "model and optimizer a separate name, or put models into a torch.nn.ModuleList"
                )
