"""`edriver.checkpoint_requested`: how a script in restart mode learns that it should save before it is stopped."""

from __future__ import annotations

from edriver.worker import context


def checkpoint_requested() -> bool:
    """Whether to save a checkpoint now, because the round's processes are about to be restarted at another size.

    Call it after each step, on all ranks: it returns True on all of them after the same step, so that they can save
    together. If only rank 0 calls it, only rank 0 is waited for. After it has returned True, the script may continue or
    end: at its next call, or at its end, the process is stopped. While there is no news a call compares two integers,
    and no message is sent.

    Returns False outside restart mode, and for ever if no change of the hosts is agreed on: after the loss of a worker
    no script is asked.
    """
    return context.current.checkpoint_requested()
