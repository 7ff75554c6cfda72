"""A shadow: the shard of another worker, to which the same optimizer makes the same steps.

Each worker sends its gradients, reduced and clipped, to the one that keeps its shadow, before the seal of the step. So
a shadow is of the same version as the shard, at each step, for 4 bytes of traffic an element. (A copy of the shard for
each commit would take 12 with Adam, and be as old as the commit.) The results are equal to the last bit. The price is
the memory of a second shard, and a second optimizer's step.

What the script itself writes to parameters, or to what the optimizer keeps of them, is brought with the next gradients,
or where all members stop. Until then the shadow does not count.
"""

from __future__ import annotations

import copy
import enum
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final

import torch
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from edriver.worker.backend import fsdp2
from edriver.worker.backend.process_modes import without_tensor_modes
from edriver.worker.copies.snapshot import TakeOver
from edriver.worker.state.optimizer_attributes import attributes
from edriver.worker.state.resharding import PARAMETER, StateShard, sharded_values
from edriver.worker.sync.packing import ALIGNMENT_BYTES
from edriver.worker.sync.pairs import Sends, exchange
from edriver.worker.sync.relay import staging

_OF_GRAD_SCALER: Final = ("grad_scale", "found_inf")
"""What an optimizer knows of a GradScaler for the time of a step, if it unscales the gradients itself."""


class Written(enum.IntEnum):
    """What a script has written to outside of an optimizer's step."""

    NOTHING = 0
    PARAMETERS = 1
    STATE = 2
    """What the optimizer keeps of its parameters; to these perhaps, too."""


class Shadow:
    """The shadow that this worker keeps.

    Args:
        model: this worker's,
        optimizer: and its optimizer.
        position: the position that it is the shadow of.
        shard: that position's shard; the shadow takes it over.

    Attributes:
        position: as given.
    """

    def __init__(self, model: torch.nn.Module, optimizer: Optimizer, position: int, shard: StateShard) -> None:
        self.position = position
        self._whole = fsdp2.sharded(model)
        self._of_whole = optimizer
        self._parameters = [
            torch.nn.Parameter(rows[PARAMETER], requires_grad=whole.requires_grad)
            for whole, rows in zip(self._whole, shard, strict=True)
        ]
        self._mine: dict[torch.Tensor, torch.nn.Parameter] = dict(zip(self._whole, self._parameters, strict=True))
        self._optimizer = _twin(optimizer, self._mine)
        self._options: list[dict[str, Any]] = []
        for whole, mine, rows in zip(self._whole, self._parameters, shard, strict=True):
            if whole in optimizer.state:
                self._keep(whole, mine, {k: v for k, v in rows.items() if k != PARAMETER})
        sent, received = [fsdp2.local(p) for p in self._whole], [p.detach() for p in self._parameters]
        self._outgoing, self._sent = _message_for(sent)
        self._incoming, self._received = _message_for(received)

    @property
    def shard(self) -> StateShard:
        """The shard: the memory itself."""
        return [
            {PARAMETER: p.detach(), **{k: self._optimizer.state[p][k] for k in sharded_values(self._of_whole, whole)}}
            for whole, p in zip(self._whole, self._parameters, strict=True)
        ]

    def exchange_gradients(self, keeper: int, written: Written) -> list[Sends]:
        """Send this worker's gradients to the keeper of its shadow, and receive those of this one.

        Args:
            keeper: the rank of the keeper.
            written: what the script has written to of this worker's: the keeper gets that as well.

        Returns:
            what is under way to it.

        Raises:
            RuntimeError: a peer was lost.
        """
        self._options = [_copied(group) for group in self._of_whole.param_groups]  # a step may count in them
        with without_tensor_modes(), torch.no_grad():
            there = self._outgoing[: len(self._whole)]
            self._outgoing[len(self._whole)] = written
            for at, (whole, room) in enumerate(zip(self._whole, self._sent, strict=True)):
                there[at] = whole.grad is not None
                if whole.grad is not None:
                    assert whole.grad.dtype == room.dtype, "FSDP2 gives gradients the parameters' type"
                    room.copy_(fsdp2.local(whole.grad))
            sends = [exchange({keeper: [self._outgoing]}, {self.position: [self._incoming]})]
            sends.append(self._exchange_rows(keeper, written, Written(int(self._incoming[len(self._whole)]))))
            has_gradient = self._incoming[: len(self._whole)].tolist()
            for mine, gradient, there_is in zip(self._parameters, self._received, has_gradient, strict=True):
                mine.grad = gradient.to(mine.device) if there_is else None
        return sends

    def exchange_rows(self, keeper: int, written: Written) -> Sends:
        """Send this worker's rows to the keeper of its shadow, and receive those of this one.

        Args:
            keeper: the rank of the keeper.
            written: what to send of them; the same on all workers.

        Raises:
            RuntimeError: a peer was lost.
        """
        with without_tensor_modes(), torch.no_grad():
            return self._exchange_rows(keeper, written, written)

    def _exchange_rows(self, keeper: int, sends: Written, receives: Written) -> Sends:
        outgoing, incoming = dict[int, list[torch.Tensor]](), dict[int, list[torch.Tensor]]()
        targets, arriving = list[torch.Tensor](), list[torch.Tensor]()
        if sends:
            sources = [fsdp2.local(p) for p in self._whole]
            if sends == Written.STATE:
                sources += [fsdp2.local(v) for p in self._whole for _, v in sorted(self._kept_of(p).items())]
            message, leaving = _message_for(sources)
            outgoing[keeper] = [message]
            for source, room in zip(sources, leaving, strict=True):
                room.copy_(source)
        anew: list[tuple[torch.nn.Parameter, torch.nn.Parameter, dict[str, torch.Tensor]]] = []
        if receives:
            targets = [p.detach() for p in self._parameters]
            if receives == Written.STATE:
                anew = self._rows_of_state()
                targets += [row for _, _, rows in anew for row in rows.values()]
            message, arriving = _message_for(targets)
            incoming[self.position] = [message]
        under_way = exchange(outgoing, incoming)
        for target, room in zip(targets, arriving, strict=True):
            target.copy_(room)
        if receives == Written.STATE:  # all of it is there: had the exchange broken, the shadow would be as it was
            self._optimizer.state.clear()
            for whole, mine, rows in anew:
                self._keep(whole, mine, rows)
        return under_way

    def _kept_of(self, whole: torch.nn.Parameter) -> dict[str, torch.Tensor]:
        return sharded_values(self._of_whole, whole)

    def _rows_of_state(self) -> list[tuple[torch.nn.Parameter, torch.nn.Parameter, dict[str, torch.Tensor]]]:
        """Memory for what the other keeps of each parameter's elements, if it keeps anything: with both parameters."""
        found = []
        for whole, mine in zip(self._whole, self._parameters, strict=True):
            if whole in self._of_whole.state:
                kept = sorted(self._kept_of(whole).items())
                found.append((whole, mine, {key: torch.empty_like(mine, dtype=value.dtype) for key, value in kept}))
        return found

    def _keep(self, whole: torch.nn.Parameter, mine: torch.nn.Parameter, rows: Mapping[str, torch.Tensor]) -> None:
        sharded = self._kept_of(whole)
        others = {k: copy.deepcopy(v) for k, v in self._of_whole.state[whole].items() if k not in sharded}
        self._optimizer.state[mine] = {**others, **rows}

    def step(self) -> None:
        """Make the optimizer's step with the gradients received last, with the options that the optimizer had then."""
        self._optimizer.param_groups[:] = _groups_of(self._options, self._mine)
        for name in _OF_GRAD_SCALER:
            if hasattr(self._of_whole, name):
                setattr(self._optimizer, name, getattr(self._of_whole, name))
        try:
            self._optimizer.step()
        except AttributeError as error:
            if not isinstance(error.obj, torch.Tensor) or isinstance(error.obj, DTensor):
                raise
            raise TypeError(
                f"{type(self._of_whole).__name__} takes all parameters for DTensors, and with --replica-size all it "
                "steps on a shadow's plain tensors, too: have it test for DTensors with isinstance, or give "
                "--replica-size a number"
            ) from error
        self.clear_gradients()

    def clear_gradients(self) -> None:
        """Discard gradients that were received."""
        for mine in self._parameters:
            mine.grad = None

    def capture(self) -> Any:
        """All of it as a tree that refers to the live tensors."""
        return [(p.detach(), dict(self._optimizer.state.get(p, {}))) for p in self._parameters]

    def load(self, tree: Any) -> None:
        """Load a tree as `capture` returns it, in place."""
        values = TakeOver()
        with torch.no_grad():
            for mine, (rows, state) in zip(self._parameters, tree, strict=True):
                mine.copy_(rows)
                self._optimizer.state[mine] = values.value(state, self._optimizer.state.get(mine, {}))


def _message_for(tensors: list[torch.Tensor]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """A message with room for each of these tensors.

    Before them stands a byte for each, which says whether there is a gradient, and one for all of them, which says
    whether parameters follow.
    """
    flags = len(tensors) + 1
    starts, length = [], flags + -flags % ALIGNMENT_BYTES
    for tensor in tensors:
        starts.append(length)
        length += tensor.nbytes + -tensor.nbytes % ALIGNMENT_BYTES
    message = staging(length)
    rooms = [
        message[at : at + t.nbytes].view(t.dtype).view(t.shape) if t.numel() else torch.empty(t.shape, dtype=t.dtype)
        for at, t in zip(starts, tensors, strict=True)
    ]
    return message, rooms


def _twin(optimizer: Optimizer, replaced: Mapping[torch.Tensor, torch.nn.Parameter]) -> Optimizer:
    """An optimizer of the same class with the same options, for other parameters; without state.

    It is made as a copy of one is, by __setstate__: its class may take any arguments. Hooks stay with the original, and
    so does what a scheduler has put in the place of `step`, or edriver elsewhere.
    """
    made: Optimizer = type(optimizer).__new__(type(optimizer))
    own = _copied(dict(attributes(optimizer)))
    groups = _groups_of(optimizer.param_groups, replaced)
    made.__setstate__({**own, "state": defaultdict(dict), "param_groups": groups})
    return made


_COPIED: Final = (torch.Tensor, dict, list, set)
_OF_GROUPS: Final = ("params", "param_names", "param_groups")


def _copied(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options or attributes of an optimizer, in whose copies a step can count; the parameters themselves."""
    return {k: _copy(v) if isinstance(v, _COPIED) and k not in _OF_GROUPS else v for k, v in options.items()}


def _copy(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception:  # noqa: BLE001  what no copy can be made of, such as a lock in a dict, is nothing that a step counts
        return value


def _groups_of(
    groups: Iterable[Mapping[str, Any]], replaced: Mapping[torch.Tensor, torch.nn.Parameter]
) -> list[dict[str, Any]]:
    """Groups with the same options for other parameters."""
    return [{**group, "params": [replaced[p] for p in group["params"] if p in replaced]} for group in groups]
