"""Horovod's states over edriver's.

`ObjectState` and `TorchState` are edriver's own, so that a failure costs no step that survivors have passed. As in
Horovod, plain values may differ between members; at the start of each round all of them take rank 0's.

A subclass of `State`, which saves, restores and syncs on its own, is carried through rounds by `ForeignState`: a
failure leads it back to its last commit.
"""

from __future__ import annotations

import abc
import copy
import enum
import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.optim import Optimizer

from edriver.horovod import basics
from edriver.horovod.collectives.negotiation import digest_of, met
from edriver.horovod.collectives.objects import broadcast_object
from edriver.horovod.elastic.sampler import ElasticSampler
from edriver.horovod.functions import broadcast_optimizer_state, broadcast_parameters
from edriver.horovod.process_sets import global_process_set
from edriver.worker.state import object_state, torch_state
from edriver.worker.state import state as states
from edriver.worker.state.digests import digest_text


class HostUpdateResult(enum.IntFlag):
    """What changed, as `State.on_hosts_updated` receives it."""

    no_update = 0
    removed = 1
    added = 2
    mixed = removed | added


class State(abc.ABC):
    """A state that saves, restores and syncs on its own.

    Args:
        bcast_object: what a subclass broadcasts an object from rank 0 with, as `self._bcast_object`; None:
            `hvd.broadcast_object`.
        get_rank: what answers this worker's rank, as `self._rank`; None: `hvd.rank`.
    """

    def __init__(
        self, bcast_object: Callable[..., Any] | None = None, get_rank: Callable[[], int] | None = None
    ) -> None:
        self._bcast_object = bcast_object or broadcast_object
        self._rank = get_rank or basics.rank
        self._reset_callbacks: list[Callable[[], object]] = []
        self._rounds: ForeignState | None = None

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], object]]) -> None:
        """Have these called at the start of every round but the first."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Adapt to a new round: called before `sync`."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:  # noqa: B027  a subclass may listen
        """Note that hosts were added or removed; called from another thread."""

    def commit(self) -> None:
        """Save the state, then pass a boundary.

        Raises:
            HostsUpdatedInterrupt: all members stop here for a change of hosts.
            HorovodInternalError: a member is gone.
        """
        self.save()
        if self._rounds is not None:
            self._rounds.pass_boundary(committed=True)

    def check_host_updates(self) -> None:
        """Pass a boundary without saving. Raises as `commit`."""
        if self._rounds is not None:
            self._rounds.pass_boundary(committed=False)

    def reset(self) -> None:  # noqa: B027  most states do not depend on them
        """Adapt to a round's rank and size."""

    @abc.abstractmethod
    def save(self) -> None:
        """Copy the state aside."""

    @abc.abstractmethod
    def restore(self) -> None:
        """Go back to what was saved last."""

    @abc.abstractmethod
    def sync(self) -> None:
        """Bring all members to rank 0's state; all of them call it at the start of each round."""


class ForeignState(states.State):
    """Carries a state through rounds that knows nothing of them.

    Args:
        foreign: the state.
    """

    def __init__(self, foreign: State) -> None:
        super().__init__()
        self._foreign = foreign
        foreign._rounds = self

    def pass_boundary(self, committed: bool) -> None:
        """Count a boundary; what may be raised is what `states.State.commit` names."""
        if self._rounds is not None:
            self._rounds.boundary(committed)

    @property
    def has_commit(self) -> bool:
        """True: what a sync brings is saved."""
        return True

    def on_reset(self) -> None:
        """Pass it on."""
        self._foreign.on_reset()

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Pass it on."""
        super().on_hosts_updated(timestamp, update_res)
        self._foreign.on_hosts_updated(timestamp, update_res)

    def save(self) -> None:
        """Pass it on."""
        self._foreign.save()

    def restore(self) -> None:
        """Pass it on."""
        self._foreign.restore()

    def sync(self) -> None:
        """Pass it on, and save what was received: it counts as committed."""
        self._foreign.sync()
        self._foreign.save()

    def reset(self) -> None:
        """Do nothing: see on_reset."""

    def digest(self, committed: bool) -> str:
        """Nothing is known of it."""
        del committed
        return ""


class _RankZeroValues(object_state.ObjectState):
    """Plain values are rank 0's at the start of each round, and may differ between members after that."""

    _has_met = False
    _committed: bool | None = None
    _bcast_object: Callable[..., Any] = staticmethod(broadcast_object)
    _rank: Callable[[], int] = staticmethod(basics.rank)

    def __init_subclass__(cls) -> None:
        """Let a script's own `sync` return nothing, as Horovod's does: the one it calls knows whether it committed."""
        super().__init_subclass__()
        own = vars(cls).get("sync")
        if own is None or cls.__module__ == __name__:
            return

        @functools.wraps(own)
        def sync(self: _RankZeroValues) -> bool:
            object.__setattr__(self, "_committed", None)
            answer = own(self)
            if answer is not None:
                return bool(answer)
            if self._committed is None:  # the subclass has transferred the state on its own
                self.save()
            return self._committed is not False

        type.__setattr__(cls, "sync", sync)

    def on_reset(self) -> None:
        """Adapt to a new round. The state's first round does not count as new, although `init` began one before."""
        if self._has_met:
            super().on_reset()
        else:
            self.reset()

    def sync(self) -> bool:
        """Bring this round's receivers to the source's state, and all members to rank 0's plain values."""
        committed = super().sync()
        object.__setattr__(self, "_has_met", True)
        if basics.is_initialized() and global_process_set.size() > 1 and self._take_plain_values() and committed:
            self.save()
        object.__setattr__(self, "_committed", committed)
        return committed

    def _plain(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in self._names if name in self._small(self._capture(), True)}
        return {name: value for name, value in values.items() if digest_text({name: value})}

    def _take_plain_values(self) -> bool:
        """Take rank 0's plain values, if members differ; returns whether they did."""
        plain = self._plain()
        digests, _ = met(global_process_set, digest_of(digest_text(plain)), 0)
        if len(set(digests)) == 1:
            return False
        for name, value in broadcast_object(plain, 0, "the state's plain values").items():
            setattr(self, name, value)
        self.keep_small()
        return True

    def _small(self, tree: dict[str, Any], plain: bool = False) -> dict[str, Any]:
        """What of a tree may take part in the digest: nothing of what may differ; with `plain`, that alone."""
        return tree if plain else {}


class ObjectState(_RankZeroValues):
    """A state of plain Python objects: see edriver.ObjectState.

    Args:
        bcast_object: see State; `sync` does without it.
        get_rank: see State.
        kwargs: the attributes.

    Raises:
        TypeError: a value cannot be kept, and why.
        ValueError: a name starts with an underscore or is one of this class's own.
    """

    def __init__(
        self,
        bcast_object: Callable[..., Any] | None = None,
        get_rank: Callable[[], int] | None = None,
        **kwargs: Any,
    ) -> None:
        self._bcast_object = bcast_object or broadcast_object
        self._rank = get_rank or basics.rank
        self._hold(kwargs)


class StateHandler:
    """Looks after values of a class of a TorchState, as `set_handler_registry` has it: saves, restores and syncs.

    Args:
        value: the value.
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    def save(self) -> None:
        """Copy the value's state aside."""
        raise NotImplementedError

    def restore(self) -> None:
        """Go back to what was saved last."""
        raise NotImplementedError

    def sync(self) -> None:
        """Bring all members to rank 0's state; all of them call it at the start of each round."""
        raise NotImplementedError

    def set_value(self, value: Any) -> None:
        """Look after another value from now on."""
        self.value = value
        self.save()


class _StateDictHandler(StateHandler):
    """Copies a state_dict aside, and loads it again."""

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self.save()

    def save(self) -> None:
        """Copy the state_dict."""
        self._saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        """Load it."""
        self.value.load_state_dict(self._saved)


class ModelStateHandler(_StateDictHandler):
    """Horovod's handler of a model, as a base class for scripts' handlers; edriver itself uses another one."""

    def sync(self) -> None:
        """Broadcast parameters and buffers from rank 0."""
        broadcast_parameters(self.value.state_dict(), root_rank=0)


class OptimizerStateHandler(_StateDictHandler):
    """The same, of an optimizer."""

    def sync(self) -> None:
        """Broadcast its state and options from rank 0."""
        broadcast_optimizer_state(self.value, root_rank=0)


class SamplerStateHandler(_StateDictHandler):
    """The same, of an ElasticSampler."""

    def sync(self) -> None:
        """Go to where rank 0's is."""
        self.value.load_state_dict(broadcast_object(self.value.state_dict()))


HandlerRegistry = list[tuple[type, type[StateHandler]]]

_registry: HandlerRegistry = [
    (torch.nn.Module, ModelStateHandler),
    (Optimizer, OptimizerStateHandler),
    (ElasticSampler, SamplerStateHandler),
]
_EDRIVERS_OWN = (ModelStateHandler, OptimizerStateHandler, SamplerStateHandler)


def get_handler_registry() -> HandlerRegistry:
    """Return the registered classes with their handlers. For the default entries edriver uses other handlers."""
    return _registry


def set_handler_registry(registry: HandlerRegistry) -> None:
    """Register the handlers for values of these classes, the model and the optimizer included.

    Args:
        registry: classes with their handlers; the first class that matches counts. edriver's handlers are used for
            values that match only a default entry of `get_handler_registry`, or no entry.
    """
    global _registry
    _registry = registry


class TorchState(torch_state.TorchState, _RankZeroValues):
    """A state with a model and an optimizer: see edriver.TorchState, which has options besides (checkpoints on disk).

    Args:
        model: the model.
        optimizer: its optimizer.
        kwargs: everything else, by name: each is an attribute, `keep` and `checkpoint`, too.

    Raises:
        TypeError: a value cannot be kept, and why.
        ValueError: a name starts with an underscore or is one of this class's own.
    """

    _foreign: dict[str, StateHandler]

    def __init__(self, model: torch.nn.Module | None = None, optimizer: Optimizer | None = None, **kwargs: Any) -> None:
        values = {"model": model, "optimizer": optimizer, **kwargs}
        foreign = {name: cls(value) for name, value in values.items() if (cls := _handler_class(value)) is not None}
        object.__setattr__(self, "_foreign", {})
        self._hold({name: value for name, value in values.items() if name not in foreign})
        for name, handler in foreign.items():
            if name.startswith("_") or hasattr(self, name):
                raise ValueError(f"a state cannot have an attribute named {name!r}: choose another name")
            object.__setattr__(self, name, handler.value)
        object.__setattr__(self, "_foreign", foreign)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._foreign:
            self._foreign[name].set_value(value)
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    @property
    def clean(self) -> bool:
        """Whether it can return to its last boundary; with handlers of the script's own it cannot."""
        return not self._foreign and super().clean

    def save(self) -> None:
        """Copy everything aside."""
        super().save()
        for handler in self._foreign.values():
            handler.save()

    def restore(self) -> None:
        """Go back to what was saved last."""
        super().restore()
        for handler in self._foreign.values():
            handler.restore()

    def sync(self) -> bool:
        """Bring this round's receivers to the source's state, and all members to rank 0's plain values."""
        committed = super().sync()
        samplers = [h.value for h in self._handlers.values() if isinstance(h.value, ElasticSampler)]
        if samplers and basics.is_initialized() and global_process_set.size() > 1:
            for sampler in samplers:
                sampler.settle()
            self.keep_small()
        for handler in self._foreign.values():
            handler.sync()
        if self._foreign and not committed:
            self.save()
        for handler in self._foreign.values():
            handler.save()
        object.__setattr__(self, "_committed", committed or bool(self._foreign))
        return committed or bool(self._foreign)

    def _small(self, tree: dict[str, Any], plain: bool = False) -> dict[str, Any]:
        handled = self._handlers
        if plain:
            return {name: part for name, (_, part) in tree.items() if name not in handled}
        small: dict[str, Any] = torch_state.TorchState._small(self, tree)
        own = {name for name, handler in handled.items() if not isinstance(handler.value, ElasticSampler)}
        return {name: part for name, part in small.items() if name in own}


def _handler_class(value: Any) -> type[StateHandler] | None:
    """The handler of a script's own that looks after a value; None: edriver does."""
    found = next((handler for cls, handler in _registry if isinstance(value, cls)), None)
    return None if found in _EDRIVERS_OWN else found


State.register(ObjectState)
State.register(TorchState)
