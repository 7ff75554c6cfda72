"""edriver on a Ray cluster, from Python.

    import edriver.ray

    results = edriver.ray.run(train, {"lr": 0.1}, min_workers=2, max_workers=8, resources_per_worker={"GPU": 1})

A run that is started so is one of `edriver --ray`: its driver is a child process of this one, and Ray holds the
workers' resources by actors. Ray itself is imported by neither: it is the driver's client that does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from edriver.calls import parcels
from edriver.calls.launch import LaunchError as LaunchError
from edriver.calls.launch import call_in_workers

__all__ = ["LaunchError", "run"]


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
    """Call a function in every worker of a new run on a Ray cluster, and return the workers' results.

    The run begins as soon as there are `min_workers`, and later takes in more, up to `max_workers`. When edriver calls
    the function, `edriver.rank()` and `edriver.size()` are known and torch.distributed's default group exists. To
    survive the loss of workers, or to use more of them later, the function calls one that `edriver.run` has made
    elastic, as a script does.

    Function, config and results are sent by cloudpickle through a port of this process, at most 64 MiB in all.
    This process prints the workers' output.

    Args:
        fn: the function; called with `config`, or without arguments if that is None.
        config: the argument of the function.
        min_workers: the minimum number of workers.
        max_workers: the maximum number of workers; None: min_workers.
        resources_per_worker: the resources that Ray reserves for each worker, such as `{"GPU": 1, "CPU": 4}`; None: a
            GPU if the cluster has any, else a CPU.
        address: the address of the cluster; None: the cluster that this process is connected to, else RAY_ADDRESS, else
            the cluster that runs on this machine.
        flags: more flags of `edriver`, such as `["--start-timeout", "60"]`.

    Returns:
        The result of each worker that was a member at the end, in order of rank.

    Raises:
        Exception: the exception that the function raised in a worker, that of the lowest rank.
        LaunchError: the run failed otherwise, for example because the cluster does not exist.
        ParcelError: function, config or a result cannot be sent.
        ValueError: the number of workers is invalid.
    """
    most = min_workers if max_workers is None else max_workers
    if not 1 <= min_workers <= most:
        raise ValueError(f"min_workers is {min_workers} and max_workers {most}: give 1 <= min_workers <= max_workers")
    arguments = () if config is None else (config,)
    call = parcels.pack_call(fn, arguments, {}, sys.path, "the function with its config")
    where = ["--ray", address or _own_cluster()]
    if resources_per_worker:
        where += ["--ray-resources", ",".join(f"{name}={amount!r}" for name, amount in resources_per_worker.items())]
    sizes = ["-np", str(min_workers), "--max-np", str(most)]
    return call_in_workers(call, [*sizes, *where, *flags], here=False)


def _own_cluster() -> str:
    """The address of the cluster to which this process is connected; `auto` if it is not connected."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return "auto"
    return str(ray.get_runtime_context().gcs_address)
