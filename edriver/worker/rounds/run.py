"""`edriver.run`: the way from a script's training function into the rounds of its process."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar, cast, overload

from edriver.calls import worker_process
from edriver.checkpoint_folder.ownership import release_at_exit
from edriver.common.store_proxy import PROXY_VARIABLE
from edriver.model.ids import NO_VERSION
from edriver.worker import context
from edriver.worker.context import RoundRunner, WorkerContext
from edriver.worker.rounds.worker_rounds import WorkerRounds
from edriver.worker.state.object_state import holds_nothing
from edriver.worker.state.state import State
from edriver.worker.watch.not_called import refuse_function, refuse_result
from edriver.worker.watch.script_location import nested_run

logger = logging.getLogger("edriver.worker")

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound=State)


def end_process_group() -> None:
    """End this worker and every process that it has started and that is still in its process group."""
    logger.error("this host's agent is gone: this worker ends")
    os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(1)  # as the first process of its PID namespace it cannot be ended by a signal from inside


class StandaloneRounds:
    """The rounds of a script that runs without a driver: a single round with one worker, which nothing interrupts."""

    def __init__(self) -> None:
        from edriver.worker.group.round_group import RoundGroup

        self._group = RoundGroup(None)
        self._entered = False
        self._running = False
        self.version = NO_VERSION

    def check(self) -> None:
        """Do nothing: there is no other member."""

    def run(self, function: Callable[..., R], state: State, args: Any, kwargs: Any) -> R | None:
        """Call the function once."""
        if self._running:
            raise nested_run(function)
        if not self._entered:
            self._group.build_alone()
            self._entered = True
        if state.newest_checkpoint(look=True):
            state.load_checkpoint()
        state.sync()
        self._running = True
        try:
            result = function(state, *args, **kwargs)
            refuse_result(function, result)
            state.function_returned()
        finally:
            self._running = False
        release_at_exit()
        return result


def rounds_of(process: WorkerContext) -> RoundRunner:
    """The rounds of this process: a worker's if a driver has started it, else those of a standalone script."""
    if process.rounds is None:
        process.rounds = _rounds_of(process)
    return process.rounds


def _rounds_of(process: WorkerContext) -> RoundRunner:
    if "EDRIVER_WORKER_ID" not in os.environ:
        return StandaloneRounds()
    if os.environ.get("EDRIVER_MODE") == "restart":
        raise RuntimeError(
            "edriver.run was called in restart mode, in which every round runs the script again: give --mode elastic. "
            "(Without --mode, edriver picks the mode from the script's own files; it does not look into installed "
            "packages.)"
        )
    from edriver.worker.backend.peer_loss import looks_like_peer_loss
    from edriver.worker.group.round_group import RoundGroup
    from edriver.worker.group.store_transport import StoreTransport
    from edriver.worker.group.warm_up import warm_up

    worker_process.claim()
    broken = warm_up()
    tls_folder, proxy = (os.environ.get(name) for name in ("EDRIVER_TLS_FOLDER", PROXY_VARIABLE))
    wire = StoreTransport(Path(tls_folder) if tls_folder else None, Path(proxy) if proxy else None)
    group = RoundGroup(os.environ["EDRIVER_STORE"], wire=wire, broken=broken)
    return WorkerRounds(process, os.environ, group, looks_like_peer_loss, end_process_group)


def _take_first_step() -> None:
    from edriver.worker.group.warm_up import take_first_step

    take_first_step()


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Be in a round of this process alone."""
    from edriver.worker.group.warm_up import group_alone

    with group_alone(), context.current.place.rehearsing():
        yield


@overload
def run(function: Callable[Concatenate[S, P], R], /) -> Callable[Concatenate[S, P], R | None]: ...


@overload
def run(
    *, warm_up: Callable[[S], object]
) -> Callable[[Callable[Concatenate[S, P], R]], Callable[Concatenate[S, P], R | None]]: ...


def run(function: Callable[..., Any] | None = None, /, *, warm_up: Callable[[Any], object] | None = None) -> Any:
    """Make a training function elastic: edriver calls it again, in the same process, in every round.

    In each round the default process group of torch.distributed exists (Gloo), `rank()` and `size()` are those of the
    round, and the state is the same on all members; so build DistributedDataParallel and data loaders inside the
    function. When members are lost, or hosts come and go, a boundary (`state.commit()`, `state.check_host_updates()`)
    or a collective raises an exception that ends the call; the next round calls the function again, from the state's
    last commit or boundary. The first parameter is the State.

    The wrapped function returns the function's result once all members are done, or None where the driver lets a
    late worker skip a `run` that has ended. The process group stays for later collectives, which are not elastic.

    As a decorator, write `@edriver.run` or `@edriver.run(warm_up=prepare)`.

    Args:
        function: the training function.
        warm_up: called with the state once per process, before this worker is ready for its first round, while the
            others train on. Use it for work that only the first step pays for, such as compiling the model: take a
            step with made-up data in the way that the training function does. The default process group consists of
            this worker alone; with a ShardedState, of its replica, whose other members are not there: see there.
            Afterwards edriver restores the state, gradients and random number generators.

    Raises:
        TypeError: the function, or `warm_up`, is an async function or a generator function, or it has returned a
            coroutine or a generator without passing a boundary; or the first argument is not a State.
        RuntimeError: called in a child process of the worker, such as a data loader's.
        CheckpointError: another live run owns the checkpoints, or the checkpoint to continue from cannot be loaded.
        SwallowedInterruptError: the function caught the exception of a boundary and continued.
        SystemExit: with code 0, when this worker's host is leaving.
        Exception: any error of the function other than the loss of a peer; it should end the process.
    """
    if function is None:
        return functools.partial(_elastic, warm_up=warm_up)
    return _elastic(function, warm_up)


def _elastic(
    function: Callable[Concatenate[S, P], R], warm_up: Callable[[S], object] | None
) -> Callable[Concatenate[S, P], R | None]:
    refuse_function(function)
    if warm_up is not None:
        refuse_function(warm_up)
    if "EDRIVER_WORKER_ID" in os.environ and "torch" in sys.modules:
        from edriver.worker.backend import default_group

        default_group.guard()
    cold = warm_up

    @functools.wraps(function)
    def wrapper(state: S, *args: P.args, **kwargs: P.kwargs) -> R | None:
        nonlocal cold
        if not isinstance(state, State):
            raise TypeError(
                f"the first argument of {getattr(function, '__name__', function)} must be an edriver.State (such as "
                f"TorchState), not {type(state).__name__}"
            )
        worker_process.refuse_child("edriver.run")
        rounds = rounds_of(context.current)
        if isinstance(rounds, WorkerRounds) and not holds_nothing(state):
            _take_first_step()
        if cold is not None:
            state.rehearse(cold, _alone)
            cold = None
        return rounds.run(function, state, args, kwargs)

    return cast(Callable[Concatenate[S, P], R | None], wrapper)
