"""`elastic.run`: the way from a Horovod script's training function into edriver's rounds."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from edriver.horovod import basics, process_sets
from edriver.horovod.collectives import handles
from edriver.horovod.elastic.state import ForeignState, State
from edriver.worker.restart import fresh_start
from edriver.worker.rounds.run import run as run_in_rounds
from edriver.worker.state.state import State as StateOfRounds
from edriver.worker.watch.not_called import refuse_function, refuse_result

R = TypeVar("R")


def run(func: Callable[..., R]) -> Callable[..., R | None]:
    """Make a training function elastic: `edriver.run` for Horovod's states.

    Under torchrun, or edriver in restart mode, the function is called once, with rank 0's state.

    Raises:
        ValueError: hvd.init() has not been called.
        TypeError: the function is an async function or a generator function, or has returned a coroutine or a
            generator; or the first argument is not a state.
    """
    refuse_function(func, "hvd.elastic.run")

    @functools.wraps(func)
    def wrapper(state: Any, *args: Any, **kwargs: Any) -> R | None:
        basics.place()
        own = ForeignState(state) if isinstance(state, State) and not isinstance(state, StateOfRounds) else state

        @functools.wraps(func)
        def in_round(_own: Any, *args: Any, **kwargs: Any) -> R:
            handles.forget_all()
            process_sets.meet_again()
            try:
                return func(state, *args, **kwargs)
            finally:
                process_sets.stop_all()  # background operations must not reach into the next round

        if basics.world().fixed and isinstance(own, StateOfRounds):
            fresh_start.say_no_state_is_kept("hvd.elastic.run")
            own.sync()
            result = in_round(own, *args, **kwargs)
            refuse_result(func, result, "hvd.elastic.run")
            return result
        return run_in_rounds(in_round)(own, *args, **kwargs)

    return wrapper
