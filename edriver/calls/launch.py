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
from typing import IO, Any, Final, Literal, TypeVar

from edriver.calls import PROGRAM, parcels
from edriver.calls.parcels import CALL, FOLDER_VARIABLE, Call, FolderPlace, Outcome, Place
from edriver.calls.worker_process import refuse_import
from edriver.common.join_config import JoinConfig, at_port
from edriver.system.child import Child
from edriver.system.own_addresses import is_own, own_addresses

R = TypeVar("R")

END_TIMEOUT: Final = 30.0
"""Seconds that an interrupted run may take to end before it is killed."""

_LAST_LINES: Final = 20

HOST_FLAGS: Final = frozenset(
    {
        *("-H", "--hosts", "--hostfile", "-hostfile", "--host-discovery-script", "--hosts-dial-in", "--discovery"),
        *("--slurm", "--slurm-partition", "--ray", "--kubernetes"),
    }
)
"""The flags of `edriver` that define the hosts: with them, workers may be on others than this machine."""


class LaunchError(RuntimeError):
    """A run ended without the results of all its workers; the message has its last lines."""

    __module__ = "edriver"  # what callers import, and so what a traceback names


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
    """Call a function in every worker of a new run, and return what the workers return.

    The workers are processes that edriver starts as for a script. In each, `edriver.rank()` and `edriver.size()` are
    known and torch.distributed's default group is there when the function is called. A function that is to survive the
    loss of workers, or to use more of them later, calls one that `edriver.run` has made elastic, as a script does.

    Function, arguments and results are sent by cloudpickle, 1 GiB each at most, so a function may be defined in a
    notebook or in a script without `if __name__ == "__main__"`. What the workers print is printed here.

    Args:
        fn: the function.
        args: its arguments,
        kwargs: and those with names.
        np: workers to start with; "auto": as many as the hosts have slots, on this machine alone one for each GPU.
        min_np: minimum number of workers; None: np.
        max_np: most to ever use; None: np, or, with a discovery script, as many as there are slots for.
        hosts: HOST:SLOTS,..., as -H of `edriver`; None: this machine, with as many slots as are needed. What workers on
            other hosts return is unpickled here, so these are trusted as this machine is; it takes 64 MiB at most.
        hostfile: a file with such a list, as --hostfile;
        host_discovery_script: or what prints it, again and again, as --host-discovery-script.
        network_interface: the interface through which hosts reach one another, as --network-interface; None: by
            routing.
        flags: more of `edriver`'s flags, such as `["--start-timeout", "60"]`. They may define the hosts as well.

    Returns:
        The result of each worker that was a member at the end, in order of rank.

    Raises:
        Exception: what the function has raised in a worker, the first by rank; its cause has the
            worker's traceback as its text.
        LaunchError: the run failed otherwise.
        ParcelError: function, arguments or a result cannot be sent.
        RuntimeError: multiprocessing is importing the script, in a process that the script has started.
        ValueError: there is no such number of workers, or the hosts are defined twice.
    """
    refuse_import("edriver.launch")
    if np != "auto" and np < 1:
        raise ValueError(f"np is {np}: a run has one worker at least")
    pickled = parcels.pack((fn, tuple(args), dict(kwargs or {})), "the function with its arguments")
    sources = {"-H": hosts or None, "--hostfile": hostfile, "--host-discovery-script": host_discovery_script}
    defined = [flag for flag, value in sources.items() if value is not None]
    defined += [flag for word in flags if (flag := word.partition("=")[0]) in HOST_FLAGS]
    if len(defined) > 1:
        raise ValueError(f"{' and '.join(defined)} both define the hosts: give only one of them")
    sizes = {"-np": np, "--min-np": min_np, "--max-np": max_np}
    given = {**sizes, **sources, "--network-interface": network_interface}
    named = [word for flag, value in given.items() if value is not None for word in (flag, str(value))]
    here = _are_here(hosts or "") if defined in ([], ["-H"]) else False
    return call_in_workers(pickled, [*named, *flags], here=here)


def call_in_workers(pickled: bytes, flags: Sequence[str], *, here: bool) -> list[Any]:
    """Call a function in every worker of a new run, and return what the workers return, by rank.

    Args:
        pickled: the function with its arguments, as parcels.pack has it.
        flags: all flags of the run.
        here: whether all of its workers are on this machine.

    Raises:
        Exception: as of `launch`.
    """
    command = [sys.executable, "-m", "edriver", "--no-journal", *flags, sys.executable, "-m", PROGRAM]
    with _place(here) as (place, variables):
        place.put(CALL, parcels.dump(Call([str(Path(entry).absolute()) for entry in sys.path], pickled)))
        # torchrun's variables are flags of a command line of the user's own
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PET_")}
        code, lines = _run(command, {**inherited, **variables})
        return _results(parcels.outcomes(place), code, lines)


def _are_here(hosts: str) -> bool:
    """Whether all hosts are this machine, and so can read a folder of it."""
    for name in filter(None, (entry.strip().rpartition(":")[0] or entry.strip() for entry in hosts.split(","))):
        try:
            found = socket.getaddrinfo(name, 0, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            return False  # ssh's configuration may know it
        if not any(is_own(family, where) for family, _, _, _, where in found):
            return False
    return True


@contextlib.contextmanager
def _place(here: bool) -> Iterator[tuple[Place, dict[str, str]]]:
    """The folder of the parcels, and the variables that pass it to the workers; removed in the end."""
    folder = Path(tempfile.mkdtemp(prefix="edriver-call-"))
    try:
        if here:
            yield FolderPlace(folder), {FOLDER_VARIABLE: str(folder)}
        else:
            with _served_exchange(folder) as served:
                yield served
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _served_exchange(folder: Path) -> Iterator[tuple[Place, dict[str, str]]]:
    from edriver.calls.exchange import EXCHANGE_VARIABLE, Exchange  # gRPC, which calls on this machine do without

    command = [sys.executable, "-m", "edriver", "rendezvous", "--port", "0", "--folder", str(folder)]
    server = Child(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, tethered=True)
    assert server.stdout is not None
    try:
        line = server.stdout.readline().decode(errors="replace")
        if "rendezvous at" not in line:
            raise LaunchError(f"the exchange for calls on other hosts does not start: {line.strip()}")
        credentials = JoinConfig.from_json((folder / "credentials.json").read_bytes())
        port = int(credentials.drivers[0].rpartition(":")[2])
        drivers = tuple(at_port(address, port) for address in (*own_addresses(), "127.0.0.1"))
        exchange = Exchange(replace(credentials, drivers=("127.0.0.1:" + str(port),)))
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


def _run(command: Sequence[str], environment: Mapping[str, str]) -> tuple[int, list[str]]:
    """Run a driver to its end, and print what it prints; returns its exit code and its last lines.

    However this process ends, the driver does not outlive it.
    """
    driver = Child(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, environment=environment, tethered=True)
    assert driver.stdout is not None
    try:
        return _to_the_end(driver, driver.stdout)
    except BaseException:
        driver.signal_group(signal.SIGINT)
        with contextlib.suppress(TimeoutError):
            driver.wait(END_TIMEOUT)
        raise
    finally:
        driver.reap()
        driver.stdout.close()


def _to_the_end(driver: Child, output: IO[bytes]) -> tuple[int, list[str]]:
    lines: list[str] = []
    for line in iter(output.readline, b""):
        text = line.decode(errors="replace")
        sys.stdout.write(text)
        sys.stdout.flush()  # into a file or a pipe, Python would hold lines back that workers have flushed
        lines = [*lines[1 - _LAST_LINES :], text]
    driver.wait(END_TIMEOUT)  # it has closed its output; reap would kill it
    return driver.reap(), lines


def _results(found: Sequence[Outcome], code: int, lines: Sequence[str]) -> list[Any]:
    failed = next((outcome for outcome in found if outcome.error), None)
    if failed is not None:
        raised = parcels.unpack(failed.pickled) if failed.pickled else LaunchError(f"rank {failed.rank} raised")
        raise raised from RemoteTraceback(f"of rank {failed.rank}:\n{failed.error}")
    if code or [outcome.rank for outcome in found] != list(range(len(found))):
        raise LaunchError(f"the run ended with exit code {code}:\n{''.join(lines)}")
    return [parcels.unpack(outcome.pickled) for outcome in found]
