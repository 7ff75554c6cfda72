"""How many threads torch computes with: one where several workers share a machine, as under torchrun.

What counts is how many workers the machine can have, not how many the round has. One that is left alone shares the
machine again as soon as others boot in the slots beside its own, and OpenMP's threads spin while they wait: with all
processors it would make a quarter of its steps until then.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from typing import Final

import torch

from edriver.model.plan import Assignment

DEFAULT_VARIABLE: Final = "EDRIVER_OMP_DEFAULT"
"""Set if OMP_NUM_THREADS=1 comes from edriver, because the number of workers on the machine was not known yet."""


class ThreadCount:
    """Gives a worker all processors of its machine if the run can have no other worker there.

    Nothing changes where the user has set OMP_NUM_THREADS, or the script has called torch.set_num_threads.

    Args:
        store: where this worker's store listens: a unix socket where all hosts of the run are this machine, which a
            driver of an older release does not say.
        environ: the worker's; a variable that no longer holds is taken out.
    """

    def __init__(self, store: str, environ: MutableMapping[str, str] = os.environ) -> None:
        self._one_machine = os.sep in store
        self._environ = environ
        self._given = 1
        self._ours = DEFAULT_VARIABLE in environ

    def follow(self, assignment: Assignment) -> None:
        """Adapt to the start of a round, in which this process has this place.

        A driver that does not say how many workers there can be is of an older release: then members count.
        """
        self._ours = self._ours and torch.get_num_threads() == self._given
        members = assignment.size if self._one_machine else assignment.local_size
        alone = (assignment.max_on_machine or members) == 1
        wanted = len(os.sched_getaffinity(0)) if alone else 1
        if not self._ours or wanted == self._given:
            return
        torch.set_num_threads(wanted)
        self._given = wanted
        if alone:
            self._environ.pop("OMP_NUM_THREADS", None)
        else:
            self._environ["OMP_NUM_THREADS"] = "1"
