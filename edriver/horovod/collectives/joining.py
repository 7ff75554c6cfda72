"""join: a member that has no data left takes part in the others' reductions with zeros until all have joined."""

from __future__ import annotations

import torch

from edriver.horovod.collectives.background import runner_of
from edriver.horovod.collectives.handles import wait
from edriver.horovod.collectives.negotiation import JOINED, CollectiveCall, any_later, compare, met, shared
from edriver.horovod.collectives.reductions import ReduceOp, reduce_async
from edriver.horovod.process_sets import CollectiveLane, global_process_set


def join(device: int = -1) -> int:
    """Take part in the others' reductions with zeros until all have joined. Averages count this member all the same.

    Args:
        device: of no effect; Horovod's argument.

    Returns:
        The rank that joined last.

    Raises:
        MismatchError: a member calls something else than a reduction.
        HorovodInternalError: a member is gone.
    """
    del device
    members = global_process_set
    own = members.lane()
    if own.size == 1:
        return own.ranks[0]
    if (runner := runner_of(members)) is not None:
        runner.drain()
    while True:
        before = members.joined
        digests, _ = met(members, JOINED, 0)
        if all(said == JOINED for said in digests):
            members.joined = frozenset()
            return max(set(own.ranks) - before)
        lane = runner.lane if runner is not None and any_later(digests) else own
        texts = shared(lane, "")
        _take_part(next(CollectiveCall.read(text) for text in texts if text), texts, lane)


def _take_part(call: CollectiveCall, texts: list[str], lane: CollectiveLane) -> None:
    compare([CollectiveCall.read(text) if text else None for text in texts], lane.ranks)
    if call.lane:
        lane = global_process_set.lane(call.lane)
    for reduction in call.reductions or ():
        zeros = torch.zeros(reduction.length, dtype=getattr(torch, reduction.dtype), device="cpu")
        wait(reduce_async(zeros, ReduceOp(reduction.op), lane))
