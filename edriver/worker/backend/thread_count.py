"""How many threads torch computes with: one where several workers share a machine, as under torchrun."""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from typing import Final

import torch

DEFAULT_VARIABLE: Final = "EDRIVER_OMP_DEFAULT"
"""Set if OMP_NUM_THREADS=1 comes from edriver, because the number of workers on the machine was not known yet."""


class ThreadCount:
    """Gives a worker that is alone on its machine all of its processors, for as long as it is alone there.

    Nothing changes where the user has set OMP_NUM_THREADS, or the script has called torch.set_num_threads.

    Args:
        store: where this worker's store listens: a unix socket where all hosts of the run are this machine.
        environ: the worker's; a variable that no longer holds is taken out.
    """

    def __init__(self, store: str, environ: MutableMapping[str, str] = os.environ) -> None:
        self._one_machine = os.sep in store
        self._environ = environ
        self._given = 1
        self._ours = DEFAULT_VARIABLE in environ

    def follow(self, size: int, local_size: int) -> None:
        """Adapt to the start of a round.

        Args:
            size: the number of workers in the round.
            local_size: the number of them on this host.
        """
        self._ours = self._ours and torch.get_num_threads() == self._given
        alone = (size if self._one_machine else local_size) == 1
        wanted = len(os.sched_getaffinity(0)) if alone else 1
        if not self._ours or wanted == self._given:
            return
        torch.set_num_threads(wanted)
        self._given = wanted
        if alone:
            self._environ.pop("OMP_NUM_THREADS", None)
        else:
            self._environ["OMP_NUM_THREADS"] = "1"
