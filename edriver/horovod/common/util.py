"""`horovod.common.util`: what scripts take of it."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import torch

from edriver.horovod import basics

T = TypeVar("T")


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether there is an interface of this name: there is one for "torch"."""
    del verbose
    return ext_base_name == "torch"


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether torch sees a GPU."""
    return extension_available(ext_base_name, verbose) and torch.cuda.is_available()


def mpi_built(verbose: bool = False) -> bool:
    """Return False: MPI is not supported."""
    del verbose
    return basics.mpi_built()


def gloo_built(verbose: bool = False) -> bool:
    """True: torch brings Gloo."""
    del verbose
    return basics.gloo_built()


def nccl_built(verbose: bool = False) -> int:
    """See `hvd.nccl_built`."""
    del verbose
    return basics.nccl_built()


@contextlib.contextmanager
def env(**kwargs: Any) -> Iterator[None]:
    """Set environment variables temporarily; those whose value is None stay unchanged."""
    wanted = {name: str(value) for name, value in kwargs.items() if value is not None}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def split_list(values: Sequence[T], count: int) -> list[Sequence[T]]:
    """Split a list into so many parts, in order, whose lengths differ by one at most; the longer ones come first."""
    length, longer = divmod(len(values), count)
    starts = [part * length + min(part, longer) for part in range(count + 1)]
    return [values[first:end] for first, end in itertools.pairwise(starts)]
