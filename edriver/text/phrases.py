"""Short phrases that several messages share."""

from __future__ import annotations

import functools
import signal
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from edriver.model.limits import MAX_NAMED, MAX_TOTAL_SLOTS
from edriver.model.settings import WHOLE_HOSTS


def count_text(count: int, noun: str) -> str:
    """A number of things: 1 worker, 2 workers."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def some_of(names: Sequence[str], most: int = MAX_NAMED) -> str:
    """The first of some names, and how many there are besides: a, b and 998 more.

    Args:
        names: at least one.
        most: the number of names that are listed.
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def limits_text(least: int, most: int, limit: int = 0) -> str:
    """How many workers a run may have: 2 to 8, or 2 or more; 2 to 8, resized to 4.

    Args:
        least: --min-np.
        most: --max-np.
        limit: what an operator has asked for since, if it is less; 0: nothing.
    """
    text = f"{least} or more" if most == MAX_TOTAL_SLOTS else f"{least} to {most}"
    return f"{text}, resized to {limit}" if 0 < limit < most else text


def replicas_text(replica_size: int, *, replicas_are_hosts: bool = False) -> str:
    """How the workers of a run are: in replicas of 4; in a replica on each host.

    Args:
        replica_size: as in Settings, other than 1.
        replicas_are_hosts: whether each host is a replica instead.
    """
    if replicas_are_hosts or replica_size == WHOLE_HOSTS:
        return "in a replica on each host"
    return f"in replicas of {replica_size}"


def one_replica_text(on_loss: str) -> str:
    """How the workers of a run are whose rounds are one replica each.

    Args:
        on_loss: what follows the loss of one of them: shrink, wait.
    """
    return f"one replica of all, on loss: {on_loss}"


def workers_text(size: int, replica_size: int, *, replicas_are_hosts: bool, on_loss: str = "") -> str:
    """A run's workers, with their replicas where these have more than one: 6 workers, 3 replicas of 2.

    Args:
        size: the number of workers.
        replica_size: that of a replica's; 0: not known.
        replicas_are_hosts: whether each host is a replica instead.
        on_loss: if all are one replica: what follows the loss of one.
    """
    text = count_text(size, "worker")
    if on_loss:
        return f"{text}, one replica of {size}, on loss: {on_loss}"
    if replicas_are_hosts:
        return f"{text}, {replicas_text(WHOLE_HOSTS)}"
    return f"{text}, {count_text(size // replica_size, 'replica')} of {replica_size}" if replica_size > 1 else text


def runs_text(run_ids: Iterable[str], names: Mapping[str, str]) -> str:
    """Runs from which to choose: 1f2e3d4c (warm-up), 5b6a7988.

    Args:
        run_ids: their IDs.
        names: names of runs, by run_id; empty: it has none.
    """
    return ", ".join(f"{run_id} ({names[run_id]})" if names.get(run_id) else run_id for run_id in run_ids)


def exit_text(code: int) -> str:
    """An exit code as text; a negative one is the signal that ended the process."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def function_name(function: Any) -> str:
    """The name of a function: of a partial, that of what it calls; of another callable object, that of its class."""
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__qualname__", type(function).__qualname__))
