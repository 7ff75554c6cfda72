"""`run`: a function on several workers, called from Python, as `horovod.run` has it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import edriver


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: tuple[float, float] | None = None,
    hosts: str | None = None,
    start_timeout: float | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    output_filename: str | None = None,
    verbose: bool | int | None = None,
    network_interface: str | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[Any]:
    """Call a function on several workers; returns its results, by rank. See `edriver.launch`.

    The arguments are those of `horovod.run` that have a meaning here; each of the later ones is the flag of its name.

    Args:
        func: what to call,
        args: and with what.
        kwargs: the same, by name.
        num_proc: how many workers.
        min_num_proc: the least to go on with.
        max_num_proc: the most to use.
        slots: --slots-per-host.
        reset_limit: --reset-limit.
        cooldown_range: --blacklist-cooldown-range.
        hosts: `host:slots,...`.
        start_timeout: --start-timeout.
        ssh_port: --ssh-port.
        ssh_identity_file: --ssh-identity-file.
        output_filename: --output-filename.
        verbose: --verbose.
        network_interface: --network-interface.
        np: an older name of num_proc,
        min_np: of min_num_proc,
        max_np: and of max_num_proc.

    Raises:
        LaunchError: see `edriver.launch`.
    """
    given = {
        "--slots-per-host": slots,
        "--reset-limit": reset_limit,
        "--start-timeout": start_timeout,
        "--ssh-port": ssh_port,
        "--ssh-identity-file": ssh_identity_file,
        "--output-filename": output_filename,
        "--network-interface": network_interface,
    }
    flags = [word for flag, value in given.items() if value is not None for word in (flag, str(value))]
    if cooldown_range is not None:
        flags += ["--blacklist-cooldown-range", *map(str, cooldown_range)]
    results: list[Any] = edriver.launch(
        *(func, args, kwargs),
        np=num_proc or np or 1,
        min_np=min_num_proc or min_np,
        max_np=max_num_proc or max_np,
        hosts=hosts,
        flags=[*flags, "--verbose"] if verbose else flags,
    )
    return results
