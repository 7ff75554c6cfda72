"""`edriver.ray.run`: a function is called in every worker of a run on a Ray cluster."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from edriver.calls import parcels
from edriver.calls.launch import call_in_workers


def run(
    fn: Callable[..., Any],
    config: Any = None,
    *,
    min_workers: int = 1,
    max_workers: int | None = None,
    resources_per_worker: Mapping[str, float] | None = None,
    address: str | None = None,
    flags: Sequence[str] = (),
) -> list[Any]:
    """Call a function in every worker of a new run on a Ray cluster, and return what the workers return.

    The run begins as soon as there are `min_workers`, and takes in more while it goes on, up to `max_workers`. In each
    worker `edriver.rank()` and `edriver.size()` are known and torch.distributed's default group is there when the
    function is called. What is to survive the loss of workers, or to use later ones, is a function that the
    called one has made elastic with `edriver.run`, as in a script.

    Function, config and results are sent by cloudpickle, through a port of this process: 64 MiB at most in all.
    What the workers print is printed here.

    Args:
        fn: the function; it is called with `config`, or without arguments where that is None.
        config: its argument.
        min_workers: the least to begin and to go on with.
        max_workers: the most to use; None: min_workers.
        resources_per_worker: what Ray holds for each worker, such as `{"GPU": 1, "CPU": 4}`; None: a GPU if the
            cluster has any, else a CPU.
        address: the cluster's; None: the one that this process is connected to, else RAY_ADDRESS or the one that runs
            on this machine.
        flags: more of `edriver`'s flags, such as `["--start-timeout", "60"]`.

    Returns:
        The result of each worker that was a member at the end, in order of rank.

    Raises:
        Exception: what the function has raised in a worker, the first by rank.
        LaunchError: the run failed otherwise: there is no such cluster, for example.
        ParcelError: function, config or a result cannot be sent.
        ValueError: there is no such number of workers.
    """
    most = min_workers if max_workers is None else max_workers
    if not 1 <= min_workers <= most:
        raise ValueError(f"min_workers is {min_workers} and max_workers {most}: give 1 <= min_workers <= max_workers")
    arguments = () if config is None else (config,)
    pickled = parcels.pack((fn, arguments, {}), "the function with its config")
    where = ["--ray", address or _own_cluster()]
    if resources_per_worker:
        where += ["--ray-resources", ",".join(f"{name}={amount!r}" for name, amount in resources_per_worker.items())]
    sizes = ["-np", str(min_workers), "--max-np", str(most)]
    return call_in_workers(pickled, [*sizes, *where, *flags], here=False)


def _own_cluster() -> str:
    """The address of the cluster to which this process is connected; `auto`: it is connected to none."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return "auto"
    return str(ray.get_runtime_context().gcs_address)
