"""Hints: the usual cause of a failure that many scripts run into, and the way out, in a sentence. Pure."""

from __future__ import annotations

import itertools
import re
import shlex
import signal
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from edriver.model.actions import Failure
from edriver.model.cause import Exit
from edriver.v1 import cause_pb2, status_pb2


@dataclass(frozen=True, slots=True)
class _Hint:
    """A kind of failure, and what to do about it.

    Attributes:
        pattern: a pattern to find in the exception, or in the last lines of output.
        text: the sentence.
        signal: a signal that means the same, or None.
        elastic: the only mode in which it is true: elastic (True) or restart (False); None: both.
    """

    pattern: re.Pattern[str]
    text: str
    signal: signal.Signals | None = None
    elastic: bool | None = None


_HINTS: Final = (
    _Hint(
        re.compile(
            r"environment variable (RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT) expected"
            r"|KeyError: '(RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT)'"
        ),
        "the script needs RANK or similar variables, which elastic mode does not set. Where it calls edriver.run, "
        "delete init_process_group, and use edriver.rank(), edriver.local_rank() and edriver.size() in the function "
        "that edriver.run calls. A script that never calls edriver.run needs restart mode: give --mode restart, and "
        "name the script in the command, as in `python train.py`",
        elastic=True,
    ),
    _Hint(
        re.compile(r"Default process group has not been initialized"),
        "in elastic mode the process group exists only inside the function that edriver.run calls: move the line there "
        "(DistributedDataParallel, a sampler of torch, any collective), or decorate the function that has it with "
        "@edriver.run. Do not call init_process_group",
        elastic=True,
    ),
    _Hint(
        re.compile(r"No module named '?edriver\b"),
        "edriver is not installed in the Python that runs the script, which is not the one that runs edriver. Name the "
        "Python that has it, as in `{python} train.py`, activate its environment, or install edriver in the other",
    ),
    _Hint(
        re.compile(r"CUDA error: invalid device ordinal|CUDA device \d+ but torch\.cuda\.device_count\(\) is 1"),
        "in elastic mode a worker sees one GPU, that of its slot, as cuda:0, whatever its local rank: leave the number "
        'out, as in torch.device("cuda"), .cuda() and map_location="cuda"',
        elastic=True,
    ),
    _Hint(
        re.compile(
            r"out of shared memory|is killed by signal: Bus error|unable to allocate shared memory\(shm\)"
            r"|unable to (open shared memory object|write to file|mmap \d+ bytes from file) </torch_"
            r"|\bshm\b.*(No space left on device|size \d+)|No space left on device.*\bshm\b"
            r"|multiprocessing/(heap|shared_memory)\.py(?s:.*)No space left on device"
        ),
        "this usually means that shared memory (/dev/shm), through which a data loader's processes pass batches, is "
        "full. Make it larger (`docker run --shm-size 8g`; in Kubernetes an emptyDir of medium Memory mounted at "
        "/dev/shm), or have fewer of these processes (num_workers)",
        signal=signal.SIGBUS,
    ),
    _Hint(
        re.compile(r"Unable to find address for: |no socket interface found|Unable to find interface"),
        "a variable names a network interface that the host does not have: GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME or "
        "TP_SOCKET_IFNAME, in the script or in what runs it (`ip link` shows those that it has)",
    ),
    _Hint(
        re.compile(r"\bbdb\.BdbQuit$|EOFError: EOF when reading a line", re.MULTILINE),
        "breakpoint(), pdb and input() read from a terminal, and a worker has none. Debug the script without edriver, "
        "as one process, or attach a debugger (debugpy, py-spy); `edriver stack` shows where each worker stands",
    ),
    _Hint(
        re.compile(
            r"PytorchStreamReader failed|UnpicklingError: (pickle data was truncated|invalid load key)|BadZipFile"
            r"|SafetensorError|EOFError: Ran out of input"
            # the innermost frames are torch.load's, and the error is not of another kind
            r'|torch/(serialization|_weights_only_unpickler)\.py", line \d+, in \w+(?!(?s:.*)\n *File ")'
            r"(?!(?s:.*)(Unsupported|Attempting to deserialize|FileNotFound|PermissionError|IsADirectory))",
            re.MULTILINE,
        ),
        "a checkpoint that cannot be read may be half-written. In restart mode a script is stopped wherever it is"
        "{stopped}, also while it writes: write to a temporary name, and rename the file when it is whole (os.replace)",
        elastic=False,
    ),
)

_OWN_ERRORS: Final = (cause_pb2.CAUSE_KIND_RAISED, cause_pb2.CAUSE_KIND_EXITED)


@dataclass(frozen=True, slots=True)
class Hints:
    """The context of a run's failures.

    Attributes:
        elastic: whether it is in elastic mode.
        last_stop: the last round in which a script was stopped at an arbitrary point, and why; empty: no such round.
        python: the path of the Python that runs edriver, here and on all hosts.
    """

    elastic: bool = True
    last_stop: str = ""
    python: str = sys.executable

    def of(self, failure: Failure) -> str | None:
        """A sentence on a failure; None: nothing is known of its kind."""
        hint = _hint_of(failure, self.elastic)
        if hint is None:
            return None
        stopped = f" ({self.last_stop})" if self.last_stop else ""
        return hint.text.format(stopped=stopped, python=shlex.quote(self.python))


def last_stop(rounds: Iterable[status_pb2.Round]) -> str:
    """The last round that was not ended by an error of the script's own, and why.

    Args:
        rounds: the run's rounds, oldest first.
    """
    for before, after in reversed([*itertools.pairwise(rounds)]):
        if after.cause.kind not in _OWN_ERRORS and after.kind != status_pb2.ROUND_KIND_START:
            name = f"{before.round_id.incarnation}.{before.round_id.n}"
            return f"round {name} ended: {after.cause.text}"
    return ""


def _hint_of(failure: Failure, elastic: bool) -> _Hint | None:
    text = f"{failure.traceback}\n{failure.tail}"
    code = failure.cause.detail.code if isinstance(failure.cause.detail, Exit) else 0
    for hint in _HINTS:
        by_signal = hint.signal is not None and code in (-hint.signal, 128 + hint.signal)
        if (by_signal or hint.pattern.search(text)) and hint.elastic in (None, elastic):
            return hint
    return None
