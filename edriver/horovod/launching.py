"""`run`: a function on several workers, called from Python, as `horovod.run` has it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from edriver.calls.launch import launch


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int = 1,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: tuple[float, float] | None = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    start_timeout: float | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    disable_cache: bool | None = None,  # noqa: ARG001  Horovod's
    output_filename: str | None = None,
    verbose: bool | int | None = None,
    use_gloo: bool | None = None,  # noqa: ARG001  Horovod's
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interface: str | Iterable[str] | None = None,
    executable: str | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
    *,
    host_discovery_script: str | None = None,
) -> list[Any]:
    """Call a function on several workers; returns its results, by rank. See `edriver.launch`.

    The arguments are those of `horovod.run` 0.28, in the same order; an argument named like a flag of horovodrun has
    the flag's meaning.

    Args:
        func: the function.
        args: its positional arguments.
        kwargs: its keyword arguments.
        num_proc: the number of workers.
        min_num_proc: the minimum number of workers.
        max_num_proc: the maximum number of workers.
        slots: --slots-per-host.
        reset_limit: --reset-limit.
        cooldown_range: --blacklist-cooldown-range.
        hosts: the hosts, as `host:slots,...`.
        hostfile: a file that lists the hosts.
        start_timeout: --start-timeout.
        ssh_port: --ssh-port.
        ssh_identity_file: --ssh-identity-file.
        disable_cache: ignored: nothing is cached between runs.
        output_filename: --output-filename.
        verbose: --verbose.
        use_gloo: ignored: Gloo reduces tensors on the CPU, and NCCL those on GPUs.
        use_mpi: not supported.
        mpi_args: not supported.
        network_interface: --network-interface; a single interface.
        executable: only this process's interpreter is supported.
        np: an older name of num_proc.
        min_np: an older name of min_num_proc.
        max_np: an older name of max_num_proc.
        host_discovery_script: a script that prints the hosts, called again and again. Not an argument of horovod.run.

    Raises:
        LaunchError: see `edriver.launch`.
        ValueError: use_mpi, mpi_args, another executable or several interfaces were given, which are not supported; or
            the hosts are defined twice.
    """
    if use_mpi or mpi_args:
        raise ValueError("hvd.run: edriver does not use MPI: leave out use_mpi and mpi_args")
    if executable not in (None, sys.executable):
        raise ValueError(f"hvd.run: workers run in {sys.executable}, as this process does: leave out executable")
    names = network_interface.split(",") if isinstance(network_interface, str) else [*(network_interface or ())]
    if len(names) > 1:
        raise ValueError(f"hvd.run: network_interface takes one interface, and not {','.join(names)}")
    given = {
        "--slots-per-host": slots,
        "--reset-limit": reset_limit,
        "--start-timeout": start_timeout,
        "--ssh-port": ssh_port,
        "--ssh-identity-file": ssh_identity_file,
        "--output-filename": output_filename,
    }
    flags = [word for flag, value in given.items() if value is not None for word in (flag, str(value))]
    if cooldown_range is not None:
        flags += ["--blacklist-cooldown-range", *map(str, cooldown_range)]
    results: list[Any] = launch(
        func,
        args,
        kwargs,
        np=np if np is not None and num_proc == 1 else num_proc,
        min_np=min_np if min_num_proc is None else min_num_proc,
        max_np=max_np if max_num_proc is None else max_num_proc,
        hosts=hosts,
        hostfile=hostfile,
        host_discovery_script=host_discovery_script,
        network_interface=names[0] if names else None,
        flags=[*flags, "--verbose"] if verbose else flags,
    )
    return results
