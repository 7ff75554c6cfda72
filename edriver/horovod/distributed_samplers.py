"""torch's DistributedSamplers that a script has made with `hvd.size()` and `hvd.rank()`: they follow the rounds.

Horovod's MNIST example makes them before `elastic.run`, and a worker that joins makes them for other numbers than those
that are there already: with shares of unequal lengths, some would take more steps than others.

Unequal numbers of steps never end well: under Horovod, too. So samplers that were made with this worker's rank and size
are split again as it takes its place in a round.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Mapping
from typing import Any

from torch.utils.data import DistributedSampler

from edriver.horovod import basics
from edriver.worker import context

_made: weakref.WeakSet[DistributedSampler[Any]] = weakref.WeakSet()
_initialize = DistributedSampler.__init__


def follow_rounds(environ: Mapping[str, str]) -> None:
    """In an elastic run, re-split in each later round the samplers created from now on."""
    world = basics.world()
    if world.follows_samplers or "EDRIVER_WORKER_ID" not in environ or world.fixed:
        return
    world.follows_samplers = True
    context.current.place.listen(_split_anew)

    @functools.wraps(_initialize)
    def initialize(self: DistributedSampler[Any], *args: Any, **kwargs: Any) -> None:
        _initialize(self, *args, **kwargs)
        if basics.is_initialized() and (self.rank, self.num_replicas) == (basics.rank(), basics.size()):
            _made.add(self)

    DistributedSampler.__init__ = initialize  # type: ignore[method-assign]


def _split_anew() -> None:
    if not basics.is_initialized():
        return
    for sampler in list(_made):
        epoch = sampler.epoch
        place = basics.size(), basics.rank()
        _initialize(sampler, sampler.dataset, *place, sampler.shuffle, sampler.seed, sampler.drop_last)
        sampler.set_epoch(epoch)
