"""`edriver.checkpoint_requested`: how a script in restart mode learns that it should save before it is stopped."""

from __future__ import annotations

from edriver.worker import context


def checkpoint_requested() -> bool:
    """Whether to save a checkpoint now, because the round's processes are about to be restarted at another size.

    Call it after each step, on all ranks: it returns True on all of them after the same step, so that they can save
    together. If only rank 0 calls it, edriver waits only for rank 0. After it has returned True, the script may
    continue or end: edriver stops the process at the next call, or at the script's end. Until there is news, a call
    compares two integers and sends no message.

    Returns False outside restart mode, and as long as no change of the hosts is agreed on. After the loss of a worker
    the processes are restarted without such a request.
    """
    return context.current.checkpoint_requested()
