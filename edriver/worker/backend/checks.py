"""Checks of the undocumented interfaces that edriver relies on, run at each worker's start and by `edriver doctor`.

    python -m edriver.worker.backend.checks        prints one JSON object: versions, GPU, and what each check has found

A failed check ends nothing: it reports the consequence, and its user (named in `relies`) falls back to that.

If Gloo's devices cannot be found, for example, a thread in a collective of an aborted round counts as stuck after 1 s,
or leaves it with the group's own timeout; if tensors do not count writes, a failure leads back to the last commit. Only
the proof of connections has no substitute: a round whose group cannot be proven is refused. Where a name differs
between the versions of torch that edriver is tested with, this package has both.
"""

from __future__ import annotations

import importlib.metadata
import json
import logging
import platform
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed import HashStore, TCPStore  # type: ignore[attr-defined]  # torch/distributed/__init__.py has it

from edriver.system import sockets
from edriver.worker.backend import (
    default_group,
    fsspec_files,
    grad_scaler,
    interpreter,
    tensors,
    torch_groups,
)
from edriver.worker.backend.gloo import groups as gloo_groups
from edriver.worker.backend.gloo.cutting import Cutter
from edriver.worker.backend.gloo.sever import gloo_devices
from edriver.worker.backend.nccl import Nccl, UnknownPartError, nccl_here
from edriver.worker.backend.peer_loss import looks_like_peer_loss
from edriver.worker.backend.torch_code import waits_for_peers

logger = logging.getLogger("edriver.worker")

SEVERING_CHECK: Final = "severing"
"""The name of the check without which a RoundGroup does not expect to find its connections."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that is relied upon.

    Attributes:
        name: what it is called.
        relies: what relies on it.
        run: what is wrong, in a few words; empty: nothing.
        fallback: what happens instead, as a sentence.
    """

    name: str
    relies: str
    run: Callable[[], str]
    fallback: str


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What a check has found.

    Attributes:
        name: the check's.
        relies: the check's.
        trouble: what is wrong; empty: nothing.
        fallback: what follows, if something is.
    """

    name: str
    relies: str
    trouble: str
    fallback: str


def _group_is_found() -> str:
    found = len(gloo_devices())
    return "" if found else f"no Gloo device was found in /proc/self/fdinfo (torch {torch.__version__})"


def _groups_pass_by() -> str:
    return "" if gloo_groups.made() else "torch makes Gloo groups without the constructor of ProcessGroupGloo"


def _names_are_counted() -> str:
    return "" if torch_groups.counts_names() else "torch.distributed has no count of its groups' names"


def _groups_have_names() -> str:
    return "" if torch_groups.names_groups() else "torch.distributed makes groups with another function"


def _groups_are_listed() -> str:
    if not torch_groups.living():
        return "torch.distributed has no list of its process groups"
    try:
        parts = [torch_groups.part_for(group, "cpu") for group in torch_groups.by_name().values()]
        Nccl().communicators()
    except (AttributeError, UnknownPartError) as error:
        return str(error)
    return "" if any(parts) else "the default process group has no backend for CPU tensors"


def _collectives_are_counted() -> str:
    return "" if torch_groups.counts_collectives() else "process groups do not count their collectives"


def _writes_are_counted() -> str:
    return "" if tensors.counts_writes() else "tensors have no counter of writes in place"


def _threads_are_seen() -> str:
    if not interpreter.knows_frames():
        return "this interpreter does not show where its threads are"
    if not waits_for_peers(dist.barrier.__code__.co_filename if hasattr(dist.barrier, "__code__") else dist.__file__):
        return "torch.distributed is not in a folder of that name"
    return "" if interpreter.ends_as_known() else "threading has no function with which a process waits for its end"


def _new_processes_are_seen() -> str:
    return "" if interpreter.prepares_as_known() else "multiprocessing prepares new processes with another function"


def _scaler_is_known() -> str:
    scaler = torch.amp.GradScaler("cpu")
    return "" if grad_scaler.is_known(scaler) else "GradScaler stores its scale elsewhere"


def _checkpoints_go_elsewhere() -> str:
    return "" if fsspec_files.is_there() else "torch.distributed.checkpoint has no fsspec_filesystem"


def _modules_can_be_bound() -> str:
    from edriver.worker.backend import fsdp2  # takes a second

    return fsdp2.trouble_here()


def _modules_can_be_made_ahead() -> str:
    from torch.distributed.device_mesh import DeviceMesh

    from edriver.worker.backend import fsdp2, offline_group  # takes a second

    with offline_group.entered(1, 2):
        groups = [offline_group.of(range(1, 2)), offline_group.of(range(2))]
        mesh = DeviceMesh.from_group(
            groups, "cpu", torch.arange(2, dtype=torch.int).view(1, 2), mesh_dim_names=("replicate", "shard")
        )
        return fsdp2.trouble_on(mesh)


def _listeners_can_be_closed() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return sockets.close_listener(listener)


GROUP_CHECKS: Final = (
    Check(
        SEVERING_CHECK,
        "freeing collectives that hang on a lost peer",
        _group_is_found,
        "A peer that dies is still noticed where its connections close. A collective that hangs on a silent peer ends "
        "with its worker, which is replaced when another one is free, or with the group's own timeout.",
    ),
    Check(
        "constructor",
        "the proof that each connection leads to a member",
        _groups_pass_by,
        "Rounds are refused, because processes that are not members could take part in them.",
    ),
    Check(
        "names",
        "building a group again after a build that failed",
        _names_are_counted,
        "A worker in which a group could not be built ends, and is replaced.",
    ),
    Check(
        "named groups",
        "Horovod's DistributedOptimizer and *_async operations in a process set",
        _groups_have_names,
        "They may hang where ranks are in unequal numbers of process sets.",
    ),
    Check(
        "groups",
        "aborting NCCL's communicators, and tearing groups down in the background",
        _groups_are_listed,
        "A worker with a GPU ends when its round is aborted, and is replaced; the training thread tears groups down.",
    ),
    Check(
        "collectives",
        "seeing collectives between an optimizer's step and the boundary",
        _collectives_are_counted,
        "edriver makes no commits of its own for such a loop: a failure there leads back to the script's last commit.",
    ),
)
"""Checks for which a process group has to be there, made since gloo_groups.when_made was called."""

PROCESS_CHECKS: Final = (
    Check(
        "writes",
        "going back to the last boundary without a copy",
        _writes_are_counted,
        "Failures lead back to the last commit: call state.commit() as often as the loss of steps requires.",
    ),
    Check(
        "threads",
        "telling a worker that is stuck or stalled from one that computes",
        _threads_are_seen,
        "A worker that is stuck in a collective is not replaced before the group's own timeout.",
    ),
    Check(
        "new processes",
        "telling a script in restart mode that a process it starts would run it again",
        _new_processes_are_seen,
        'Such a process fails or hangs in its own way, where the script has no `if __name__ == "__main__":`.',
    ),
    Check(
        "scaler",
        "keeping a GradScaler at each boundary without waiting for the device",
        _scaler_is_known,
        "edriver calls its state_dict, which waits for the device at each boundary.",
    ),
    Check(
        "listeners",
        "closing Gloo's listeners once a group is built",
        _listeners_can_be_closed,
        "They stay open to everyone who can reach them.",
    ),
    Check(
        "checkpoints",
        "keeping checkpoints in an object store or another place that fsspec supports",
        _checkpoints_go_elsewhere,
        "Checkpoints can be kept in a local folder only.",
    ),
)
"""Cheap checks that need nothing."""


def found_by(checks: Iterable[Check]) -> list[CheckResult]:
    """Run checks. One that raises has failed: nothing that is checked may end a worker."""
    return [CheckResult(check.name, check.relies, _trouble(check), check.fallback) for check in checks]


def _trouble(check: Check) -> str:
    try:
        return check.run()
    except Exception as error:  # noqa: BLE001  any change can show in any way
        return f"{type(error).__name__}: {error}"


def failed(findings: Iterable[CheckResult]) -> frozenset[str]:
    """The names of those that have failed, each of which is logged in a sentence."""
    names = set()
    for finding in findings:
        if finding.trouble:
            names.add(finding.name)
            logger.warning("%s", sentence(finding))
    return frozenset(names)


def sentence(finding: CheckResult) -> str:
    """What a check that failed means."""
    return f"{finding.relies} does not work here: {finding.trouble}. {finding.fallback}"


SHARDED_CHECK: Final = Check(
    "sharded modules",
    "binding modules that fully_shard has sharded to another round's mesh",
    _modules_can_be_bound,
    "A ShardedState makes its model and its optimizer anew in each round.",
)
"""Takes a process group, and a second for the imports: for `edriver doctor`. A ShardedState looks at its own model."""

AHEAD_CHECK: Final = Check(
    "models made ahead",
    "making a sharded model before a worker's first round",
    _modules_can_be_made_ahead,
    "A worker that joins makes its model in its first round, and the others wait for it.",
)
"""The same, but with no process group. A ShardedState finds out by itself."""


# ---- two ranks: `edriver doctor` starts both

HANG_TIMEOUT: Final = 30.0
"""Seconds after which a collective that has been severed counts as not freed."""


def frees_a_collective(port: int) -> str:
    """Whether severing frees a collective that hangs on a silent peer, and how its error reads; empty: yes.

    Args:
        port: of the store that `be_silent` has opened, in the other process of a group of two.
    """
    _join(port, rank=0)
    raised: list[BaseException] = []

    def hang() -> None:
        try:
            dist.all_reduce(torch.ones(1))
        except RuntimeError as error:
            raised.append(error)

    hanging = threading.Thread(target=hang, daemon=True)
    hanging.start()
    deadline = time.monotonic() + HANG_TIMEOUT
    cutter = Cutter()
    while hanging.is_alive() and time.monotonic() < deadline:
        cutter.cut(gloo_devices().values())
        hanging.join(0.03)
    if not raised:
        return f"a collective that hangs on a silent peer was not freed within {HANG_TIMEOUT:g} s"
    return "" if looks_like_peer_loss(raised[0]) else f"its error is not recognized as the loss of a peer: {raised[0]}"


def be_silent() -> None:
    """Be the other rank: print the store's port, join, and do nothing until standard input ends."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    _join(port, rank=1)
    sys.stdin.read()


def _join(port: int, rank: int) -> None:
    limit = timedelta(seconds=2 * HANG_TIMEOUT)
    store = TCPStore("127.0.0.1", port, 2, is_master=rank == 1, timeout=limit)
    torch_groups.init("gloo", store, rank, 2, limit)


# ---- as a program


def versions() -> dict[str, Any]:
    """What is installed, and which GPUs torch sees."""
    gpus = (
        [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    )
    has_nccl = dist.is_nccl_available() and gpus
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if has_nccl else ""  # type: ignore[no-untyped-call]
    return {
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in ("torch", "grpcio", "protobuf")},
        "gpus": gpus,
        "nccl": nccl,
    }


def main() -> None:
    """Print what has been found; with `silent`, or `frees` and a port: be one of two ranks."""
    match sys.argv[1:]:
        case ["silent"]:
            be_silent()
            return
        case ["frees", port]:
            trouble = frees_a_collective(int(port))
            sys.stdout.write(json.dumps({"trouble": trouble}))
            return
    gloo_groups.when_made(None)
    nccl = nccl_here()
    backend = "gloo" if nccl is None else nccl.backend
    torch_groups.init(backend, HashStore(), 0, 1, timedelta(seconds=HANG_TIMEOUT))
    findings = found_by((*GROUP_CHECKS, *PROCESS_CHECKS, SHARDED_CHECK))
    default_group.destroy()
    findings += found_by((AHEAD_CHECK,))
    found = {"versions": versions(), "findings": [asdict(finding) for finding in findings]}
    sys.stdout.write(json.dumps({**found, "no_filters": sockets.no_filters()}))


if __name__ == "__main__":
    main()
