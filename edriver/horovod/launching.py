"""`run`: a function on several workers, called from Python, as `horovod.run` has it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import edriver


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    np: int = 1,
    min_np: int | None = None,
    max_np: int | None = None,
    hosts: str | None = None,
) -> list[Any]:
    """Call a function on several workers; returns its results, by rank. See `edriver.launch`.

    Args:
        func: what to call,
        args: and with what.
        kwargs: the same, by name.
        np: how many workers.
        min_np: the least to go on with.
        max_np: the most to use.
        hosts: `host:slots,...`.

    Raises:
        LaunchError: see `edriver.launch`.
    """
    results: list[Any] = edriver.launch(func, args, kwargs, np=np, min_np=min_np, max_np=max_np, hosts=hosts)
    return results
