"""The modes that a training function computes in: which go back with the boundary, like all that decides the next step.

Of the process: gradients, autocast, default dtype and device, deterministic algorithms. Of the state's models: which of
their modules train and which evaluate. Both are noted at a boundary that ends a step: one in the midst of a validation,
in which no optimizer has made a step, leaves what training computes in as it was noted before.

A mode that a context manager has set is never brought back: the context manager ends it when the exception leaves the
function, and begins it when the function is called again.

Of a model with many modules all are looked at for 0.01 % of the time and at commits, and the model itself at each
boundary. Newcomers take the source's modes with its state. At a round's first boundary each member reports its own with
its digest, and the driver names differences.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import torch

    from edriver.worker.backend.process_modes import ProcessModes

ALWAYS_NOTED: Final = 32
"""Modules of a state that are looked at at each boundary: in a microsecond."""

MAX_NAMES: Final = 5
"""Modules that are named; further ones are counted."""

SHARE: Final = 0.0001
"""Most of the time that is spent on looking at more than these, between commits. For a change to be seen too late it
would have to come within some seconds before a loss, in a part of a model and not in the whole."""


class ModelModes:
    """Which modules of a model train, and which evaluate.

    Args:
        model: the model.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._parts: list[torch.nn.Module] = []
        self._noted: list[bool] = []

    def watch(self) -> None:
        """Look for modules that have come or gone. What was noted of the others stays."""
        known = {id(part): trains for part, trains in zip(self._parts, self._noted, strict=True)}
        self._parts = list(self._model.modules())
        self._noted = [known.get(id(part), part.training) for part in self._parts]

    @property
    def parts(self) -> list[torch.nn.Module]:
        """The model and all modules in it."""
        return self._parts

    def note(self) -> None:
        """Note all modules."""
        self._noted = list(map(_TRAINS, self._parts))

    def bring_back(self) -> None:
        """Go back to what was noted."""
        for part, trains in zip(self._parts, self._noted, strict=True):
            if part.training is not trains:
                part.training = trains

    def evaluating(self) -> list[str]:
        """The names of those that evaluate, as of the last note; of one that was not noted, as of now."""
        if self._parts and all(self._noted):
            return []
        noted = {id(part): trains for part, trains in zip(self._parts, self._noted, strict=True)}
        return [name for name, part in self._model.named_modules() if not noted.get(id(part), part.training)]

    def take(self, evaluating: Iterable[str]) -> None:
        """Have these evaluate, and all others train."""
        names = set(evaluating)
        for name, part in self._model.named_modules():
            part.training = name not in names
        self.watch()
        self.note()


_TRAINS: Final = attrgetter("training")


class Modes:
    """The modes of a state's training function.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._models: dict[str, ModelModes] = {}
        self._watched: list[torch.nn.Module] = []
        self._flags: list[bool] = []
        self._entered: ProcessModes | None = None  # in which the function was called
        self._noted: ProcessModes | None = None
        self._inference = False
        self._quick: tuple[object, ...] | None = None
        self._due = 0.0

    @property
    def noted(self) -> ProcessModes | None:
        """Those of the process, as of the last boundary that ended a step; None: of a process without torch."""
        return self._noted

    def watch(self, models: Mapping[str, ModelModes]) -> None:
        """Look at the modules of these from now on, by the names of the state's attributes."""
        self._models = dict(models)
        for model in self._models.values():
            model.watch()
        parts = [part for model in self._models.values() for part in model.parts]
        self._watched = parts if len(parts) <= ALWAYS_NOTED else [model.parts[0] for model in self._models.values()]
        self._quick = None

    def text(self) -> str | None:
        """What the function computes in, as text for people, the same on all members; None without torch."""
        if self._noted is None:
            return None
        named = [(name, path) for name, model in self._models.items() for path in model.evaluating()]
        evaluating = [f"{name}.{path}" if path else name for name, path in named]
        more = f" and {len(evaluating) - MAX_NAMES} more" if len(evaluating) > MAX_NAMES else ""
        text = f"; in eval mode: {', '.join(evaluating[:MAX_NAMES])}{more}" if evaluating else ""
        return self._noted.text() + text

    def begin(self) -> None:
        """The function is about to be called for the first time: what is in effect now is what it expects."""
        if "torch" in sys.modules:
            self._look()
            self._inference = _of_process().inference()

    def passed(self, commits: bool = False) -> None:
        """A boundary ends a step. Takes a microsecond or two.

        Args:
            commits: whether everything is copied here, so that a look at all modules makes no difference.
        """
        if "torch" not in sys.modules:
            return
        flags = list(map(_TRAINS, self._watched))
        if commits or flags != self._flags or _of_process().quick() != self._quick or self._clock() >= self._due:
            self._look()

    def go_back(self, to: ProcessModes | None = None) -> None:
        """The function was left, and is to be called again: go back to what was noted.

        Args:
            to: modes of the process to go back to instead: those of the last commit.
        """
        for model in self._models.values():
            model.bring_back()
        to = self._noted if to is None else to
        if to is None or self._entered is None:
            return
        _of_process().enter(to.but_for_context_managers(self._entered, left=_of_process().current()))
        self._noted = _of_process().current()

    @contextlib.contextmanager
    def in_function(self) -> Iterator[None]:
        """What the function computes in: the modes as they are, but for an inference mode that it has left on."""
        if "torch" not in sys.modules:
            yield
            return
        self._entered = self._noted = _of_process().current()
        with _of_process().with_inference(self._inference):
            yield

    def sent(self) -> tuple[Any, ...] | None:
        """The modes of the process, for newcomers: of built-in types and torch's own."""
        return None if self._noted is None else tuple(self._noted)

    def take(self, sent: tuple[Any, ...] | None) -> None:
        """Apply what `sent` returned on another worker. A default device of the same kind keeps its number."""
        if sent is not None:
            theirs, own = _of_process().ProcessModes(*sent), _of_process().current()
            if _kind(own.device) == _kind(theirs.device):
                theirs = theirs._replace(device=own.device)
            _of_process().enter(theirs)
            self._noted = _of_process().current()

    def _look(self) -> None:
        began = self._clock()
        self._flags = list(map(_TRAINS, self._watched))
        self._quick = _of_process().quick()
        self._noted = _of_process().current()
        for model in self._models.values():
            model.note()
        now = self._clock()
        self._due = now + (now - began) / SHARE


@functools.cache
def _of_process() -> ModuleType:
    from edriver.worker.backend import process_modes  # which imports torch: a world of plain objects does without

    return process_modes


def _kind(device: str | None) -> str:
    return "cpu" if device is None else device.partition(":")[0]
