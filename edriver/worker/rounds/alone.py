"""`edriver.run` in a script that no driver has started."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from edriver.checkpoints.ownership import release_at_exit
from edriver.worker.state.state import State
from edriver.worker.watch.not_called import refuse_result
from edriver.worker.watch.script_location import nested_run

R = TypeVar("R")


class Alone:
    """The rounds of a script on its own: one, of one worker, in which nothing happens."""

    def __init__(self) -> None:
        from edriver.worker.group.round_group import RoundGroup

        self._group = RoundGroup(None)
        self._entered = False
        self._running = False

    def run(self, function: Callable[..., R], state: State, args: Any, kwargs: Any) -> R | None:
        """Call the function once."""
        if self._running:
            raise nested_run(function)
        if not self._entered:
            self._group.build_alone()
            self._entered = True
        if state.newest_checkpoint(look=True):
            state.load_checkpoint()
        state.sync()
        self._running = True
        try:
            result = function(state, *args, **kwargs)
            refuse_result(function, result)
            state.function_returned()
        finally:
            self._running = False
        release_at_exit()
        return result
