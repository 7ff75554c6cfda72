"""An operation: what members agree on, and what they do then, whether something waits for it or not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from edriver.horovod.collectives.background import Task, runner_of
from edriver.horovod.collectives.handles import Pending, UnderWay, handle_of
from edriver.horovod.collectives.negotiation import Agreed, Agreement, CollectiveCall
from edriver.horovod.process_sets import ProcessSet


@dataclass(frozen=True, slots=True)
class Operation:
    """What members are about to do together.

    Attributes:
        call: what they agree on.
        members: who takes part.
        begin: starts the collectives, once that is agreed on.
        extra: a number of this member's that the others need.
    """

    call: CollectiveCall
    members: ProcessSet
    begin: Callable[[Agreed], Pending]
    extra: int = 0

    def now(self) -> Any:
        """Carry it out and wait for it; returns its result.

        Raises:
            MismatchError: the members call different things; names the ranks, types and shapes.
            ValueError: the call cannot be, on any member; or this rank is not one.
            HorovodInternalError: a member is gone.
        """
        agreed = Agreement(self.call, self.members, self.extra).conclude()
        with torch.no_grad():
            pending = self.begin(agreed)
        return pending.result()

    def later(self) -> int:
        """Start the operation without waiting; returns its handle, which raises the errors.

        Raises:
            ValueError: this rank is not a member.
            HorovodInternalError: a member is lost.
        """
        return handle_of(begun_later(self.call, self.members, self.begin, self.extra))


def begun_later(
    call: CollectiveCall, members: ProcessSet, begin: Callable[[Agreed], Pending] | None = None, extra: int = 0
) -> UnderWay:
    """Run an operation in the background; if `begin` is None, the members only agree on it.

    If the set has no lane for it in this round, it runs at once: the script has not entered the round by `hvd.init` or
    `hvd.elastic.run`.
    """
    runner = runner_of(members)
    agreement = Agreement(call, members, extra, later=runner is not None)
    inference = torch.is_inference_mode_enabled()
    stream = torch.cuda.current_stream() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]

    def carry_out() -> Pending:
        """Run in the caller's modes and on its stream, which are otherwise those of each thread."""
        agreed = agreement.conclude()
        if begin is None:
            return Pending([], lambda: None)
        on_stream = contextlib.nullcontext() if stream is None else torch.cuda.stream(stream)
        with torch.inference_mode(inference), torch.no_grad(), on_stream:
            return begin(agreed)

    task = Task(carry_out)
    if runner is None:
        task.run()
    else:
        runner.add(task)
    return task
