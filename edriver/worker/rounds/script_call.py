"""One call of `edriver.run` by the script: its function and its state, and what the loop asks of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from edriver.worker.context import WorkerContext
from edriver.worker.rounds import effects
from edriver.worker.rounds.effects import Answer, OfScript
from edriver.worker.state.state import State
from edriver.worker.watch.not_called import refuse_result
from edriver.worker.watch.scheduler_end import name_the_resize
from edriver.worker.watch.script_reports import NO_BOUNDARY, ScriptReports

R = TypeVar("R")


class ScriptCall(Generic[R]):
    """A training function with its arguments.

    Attributes:
        state: the state passed to the function.
        result: the function's result in this round.

    Args:
        context: the context of this process.
        synced: called when the state is synced in a round.
        boundaries: returns the number of boundaries passed in the round.
    """

    def __init__(
        self,
        context: WorkerContext,
        function: Callable[..., R],
        state: State,
        args: Any,
        kwargs: Any,
        synced: Callable[[], None],
        boundaries: Callable[[], int],
    ) -> None:
        self._context = context
        self._reports = context.part(ScriptReports)
        self.state = state
        self.result: R | None = None
        self._function = function
        self._args = args
        self._kwargs = kwargs
        self._synced = synced
        self._sizes: list[int] = []  # of the rounds in which the function was called
        state.computes_in.begin()
        self._boundaries = boundaries
        self._has_run = False

    def forget(self) -> None:
        """Forget what the function returned: it may keep the round's group alive."""
        self.result = None

    def perform(self, effect: OfScript) -> Answer:
        """Carry out what concerns the function or the state; returns the answer.

        Raises:
            Exception: whatever the function, or the state, raises.
        """
        state = self.state
        match effect:
            case effects.Train():
                self._train()
            case effects.Sync():
                committed = state.sync() is not False
                self._synced()
                return committed
            case effects.Adapt():
                state.computes_in.go_back()
                state.on_reset()
            case effects.CompleteShadows():
                state.complete_shadows()
            case effects.IsClean():
                return state.clean
            case effects.UncountedSteps():
                return self._reports.uncounted_steps
            case effects.WhyTorn():
                return NO_BOUNDARY if self._reports.uncounted_steps else state.why_torn
            case effects.Digest(committed):
                self._context.phase.show(None)
                return state.digest(committed)
            case effects.ShardsHeld(committed):
                return state.shards_held(committed)
            case effects.NewestCheckpoint(look):
                return state.newest_checkpoint(look)
            case effects.LastCheckpoint(chosen):
                state.write_last_checkpoint(chosen)
            case effects.Save():
                state.save()
            case effects.Keep():
                state.keep_small()
            case effects.Restore():
                state.restore()
                state.clear_gradients()
            case effects.ReturnToBoundary():
                self._context.micro_batch.interrupted()
                state.return_to_boundary()
                state.clear_gradients()
        return None

    def _train(self) -> None:
        state, place = self.state, self._context.place.assignment
        self._sizes.append(place.size)
        try:
            with state.computes_in.in_function():
                self.result = self._function(state, *self._args, **self._kwargs)
        except Exception as error:
            name_the_resize(error, self._sizes, place)
            raise
        finally:
            self._has_run = self._has_run or self._boundaries() > 0
        if not self._has_run:
            refuse_result(self._function, self.result)
            self._reports.returned(self._function)
        state.function_returned()
