"""`edriver.launch`: the caller's side."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, Final, Literal, NamedTuple, TypeVar

from edriver.calls import PROGRAM, PROGRESS_MARK, PROGRESS_VARIABLE, parcels
from edriver.calls.notebook import progress_display
from edriver.calls.parcels import (
    CALL,
    EXCHANGE_VARIABLE,
    FOLDER_VARIABLE,
    FolderParcelStore,
    Outcome,
    ParcelStore,
    PickledCall,
)
from edriver.calls.worker_process import refuse_import
from edriver.common.join_config import JoinConfig, at_port
from edriver.system.child import Child
from edriver.system.own_addresses import is_own, own_addresses

R = TypeVar("R")

END_TIMEOUT: Final = 30.0
"""Seconds that an interrupted run may take to end before it is killed."""

_LAST_LINES: Final = 20

_FAILURE: Final = "edriver: failed: "

HOST_FLAGS: Final = frozenset(
    {
        *("-H", "--hosts", "--hostfile", "-hostfile", "--host-discovery-script", "--hosts-dial-in", "--discovery"),
        *("--slurm", "--slurm-partition", "--ray", "--kubernetes"),
    }
)
"""The flags of `edriver` that define the hosts: with them, workers may be on others than this machine."""


class LaunchError(RuntimeError):
    """A run ended without the results of all its workers; the message contains the run's last lines."""

    __module__ = "edriver"  # callers import it from there, so a traceback should name that


class RemoteTraceback(Exception):  # noqa: N818  as concurrent.futures has it: the cause of an error, as text
    """The traceback of an exception that a worker raised; the exception's cause."""


def launch(
    fn: Callable[..., R],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    np: int | Literal["auto"],
    min_np: int | None = None,
    max_np: int | None = None,
    hosts: str | None = None,
    hostfile: str | os.PathLike[str] | None = None,
    host_discovery_script: str | None = None,
    network_interface: str | None = None,
    flags: Sequence[str] = (),
) -> list[R]:
    """Call a function in every worker of a new run, and return the workers' results.

    The workers are processes that edriver starts as for a script. When it calls the function, `edriver.rank()` and
    `edriver.size()` are known and torch.distributed's default group exists. To survive the loss of workers, or to use
    more of them later, the function calls one that `edriver.run` has made elastic, as a script does.

    Function, arguments and results are sent by cloudpickle, at most 1 GiB each, so a function may be defined in a
    notebook or in a script without `if __name__ == "__main__"`. This process prints the workers' output; a notebook
    also shows the progress, in one line. The run's name is the function's, unless `flags` has another (--name).

    Args:
        fn: the function.
        args: its positional arguments.
        kwargs: its keyword arguments.
        np: the number of workers to start with; "auto": the number of slots of the hosts; on this machine alone, one
            for each GPU.
        min_np: the minimum number of workers; None: np.
        max_np: the maximum number of workers; None: np, or, with a discovery script, the number of slots.
        hosts: HOST:SLOTS,..., like -H of `edriver`; None: this machine, with as many slots as are needed. The results
            of workers on other hosts are unpickled here, so trust those hosts as you trust this machine; they are
            limited to 64 MiB.
        hostfile: a file with such a list, like --hostfile.
        host_discovery_script: a script that prints such a list, called again and again, like --host-discovery-script.
        network_interface: the interface through which hosts reach one another, like --network-interface; None: chosen
            by routing.
        flags: more flags of `edriver`, such as `["--start-timeout", "60"]`. They may define the hosts as well.

    Returns:
        The result of each worker that was a member at the end, in order of rank.

    Raises:
        Exception: the exception that the function raised in a worker, that of the lowest rank; its cause has the
            worker's traceback as its text.
        LaunchError: the run failed otherwise.
        ParcelError: function, arguments or a result cannot be sent.
        RuntimeError: multiprocessing is importing the script, in a process that the script has started.
        ValueError: the number of workers is invalid, or the hosts are defined twice.
    """
    refuse_import("edriver.launch")
    if np != "auto" and np < 1:
        raise ValueError(f"np is {np}: a run has at least one worker")
    call = parcels.pack_call(fn, args, kwargs or {}, sys.path, "the function with its arguments")
    sources = {"-H": hosts or None, "--hostfile": hostfile, "--host-discovery-script": host_discovery_script}
    defined = [flag for flag, value in sources.items() if value is not None]
    defined += [flag for word in flags if (flag := word.partition("=")[0]) in HOST_FLAGS]
    if len(defined) > 1:
        raise ValueError(f"{' and '.join(defined)} both define the hosts: give only one of them")
    sizes = {"-np": np, "--min-np": min_np, "--max-np": max_np}
    given = {**sizes, **sources, "--network-interface": network_interface}
    named = [word for flag, value in given.items() if value is not None for word in (flag, str(value))]
    here = _are_here(hosts or "") if defined in ([], ["-H"]) else False
    return call_in_workers(call, [*named, *flags], here=here)


def call_in_workers(call: PickledCall, flags: Sequence[str], *, here: bool) -> list[Any]:
    """Call a function in every worker of a new run, and return the workers' results, by rank.

    Args:
        call: the function with its arguments. The run is named after it, unless a flag names the run.
        flags: all flags of the run.
        here: whether all workers are on this machine.

    Raises:
        Exception: see `launch`.
    """
    named = any(word.partition("=")[0] in ("--name", "--run") for word in flags)
    name = [] if named else [f"--name={call.name}"]
    command = [sys.executable, "-m", "edriver", "--no-journal", *name, *flags, sys.executable, "-m", PROGRAM]
    show = progress_display()
    with _place(here) as (place, variables):
        place.put(CALL, parcels.dump(call))
        if show is not None:
            variables = {**variables, PROGRESS_VARIABLE: "1"}
        ended = _run(command, {**inherited(os.environ), **variables}, show)
        return _results(parcels.outcomes(place), ended)


def inherited(environ: Mapping[str, str]) -> dict[str, str]:
    """What a call's run gets of its caller's environment, which may be that of a worker that another call runs in.

    torchrun's variables stand for flags of a command line, which a call does not have.
    """
    of_a_call = (PROGRESS_VARIABLE, EXCHANGE_VARIABLE, FOLDER_VARIABLE)
    return {name: value for name, value in environ.items() if not name.startswith("PET_") and name not in of_a_call}


def _are_here(hosts: str) -> bool:
    """Whether all hosts are this machine, and so can read a folder on it."""
    for name in filter(None, (entry.strip().rpartition(":")[0] or entry.strip() for entry in hosts.split(","))):
        try:
            found = socket.getaddrinfo(name, 0, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            return False  # ssh's configuration may know the name
        if not any(is_own(family, where) for family, _, _, _, where in found):
            return False
    return True


@contextlib.contextmanager
def _place(here: bool) -> Iterator[tuple[ParcelStore, dict[str, str]]]:
    """The place of the parcels, and the variables that pass it to the workers; removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="edriver-call-"))
    try:
        if here:
            yield FolderParcelStore(folder), {FOLDER_VARIABLE: str(folder)}
        else:
            with _served_exchange(folder) as served:
                yield served
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _served_exchange(folder: Path) -> Iterator[tuple[ParcelStore, dict[str, str]]]:
    from edriver.calls.exchange import RemoteParcelStore  # imports gRPC: not for this machine alone

    command = [sys.executable, "-m", "edriver", "rendezvous", "--port", "0", "--folder", str(folder)]
    server = Child(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, tethered=True)
    assert server.stdout is not None
    try:
        line = server.stdout.readline().decode(errors="replace")
        if "rendezvous at" not in line:
            raise LaunchError(f"the exchange for calls on other hosts could not be started: {line.strip()}")
        credentials = JoinConfig.from_json((folder / "credentials.json").read_bytes())
        port = int(credentials.drivers[0].rpartition(":")[2])
        drivers = tuple(at_port(address, port) for address in (*own_addresses(), "127.0.0.1"))
        exchange = RemoteParcelStore(replace(credentials, drivers=("127.0.0.1:" + str(port),)))
        try:
            yield exchange, {EXCHANGE_VARIABLE: replace(credentials, drivers=drivers).to_json().decode()}
        finally:
            exchange.close()
    finally:
        server.signal_group(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            server.wait(END_TIMEOUT)
        server.reap()
        server.stdout.close()


class _Ended(NamedTuple):
    """How a driver has ended.

    Attributes:
        code: its exit code.
        lines: its last lines.
        report: its lines about the failure that has ended the run, which are not printed yet.
    """

    code: int
    lines: list[str]
    report: list[str]


def _run(command: Sequence[str], environment: Mapping[str, str], show: Callable[[str], object] | None) -> _Ended:
    """Run a driver to its end, and print its output.

    The driver does not outlive this process, however it ends.

    Args:
        command: the driver's.
        environment: the driver's.
        show: shows its progress, a line that replaces the one before; None: the driver is not asked for such lines.
    """
    driver = Child(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, environment=environment, tethered=True)
    assert driver.stdout is not None
    try:
        return _to_the_end(driver, driver.stdout, show)
    except BaseException:
        driver.signal_group(signal.SIGINT)
        with contextlib.suppress(TimeoutError):
            driver.wait(END_TIMEOUT)
        raise
    finally:
        driver.reap()
        driver.stdout.close()


def _to_the_end(driver: Child, output: IO[bytes], show: Callable[[str], object] | None) -> _Ended:
    lines: list[str] = []
    report: list[str] = []
    for line in iter(output.readline, b""):
        text = line.decode(errors="replace")
        if show is not None and text.startswith(PROGRESS_MARK):
            show(text.removeprefix(PROGRESS_MARK).rstrip("\n"))
            continue
        lines = [*lines[1 - _LAST_LINES :], text]
        if report or text.startswith(_FAILURE):
            report.append(text)
            continue
        sys.stdout.write(text)
        sys.stdout.flush()  # into a file or a pipe, Python would buffer lines that workers have flushed
    driver.wait(END_TIMEOUT)  # it has closed its output; reap would kill it
    return _Ended(driver.reap(), lines, report)


def _results(found: Sequence[Outcome], ended: _Ended) -> list[Any]:
    failed = next((outcome for outcome in found if outcome.error), None)
    if failed is not None:
        raised = parcels.unpack(failed.pickled) if failed.pickled else LaunchError(f"rank {failed.rank} raised")
        raise raised from RemoteTraceback(f"of rank {failed.rank}:\n{failed.error}")
    sys.stdout.write("".join(ended.report))  # which an exception says already
    if ended.code or [outcome.rank for outcome in found] != list(range(len(found))):
        raise LaunchError(f"the run ended with exit code {ended.code}:\n{''.join(ended.lines)}")
    return [parcels.unpack(outcome.pickled) for outcome in found]
