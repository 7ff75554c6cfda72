"""`edriver --supervise`: a process that starts the driver again when it is killed. It keeps nothing itself."""

from __future__ import annotations

import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Final

import tenacity

from edriver.cli.complaint import complain
from edriver.cli.resuming.started_again import STARTED_AGAIN
from edriver.driver.config.output_options import SUPERVISED_PREFIX
from edriver.driver.journal.journal import EXIT_REPLACED
from edriver.driver.run.stop_requests import STOP_SIGNALS
from edriver.system.child import Child
from edriver.text.phrases import exit_text

SUPERVISE: Final = "--supervise"

PAUSES: Final = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds before the driver is started again, after it was killed for the first, second, ... time in a row."""

STABLE: Final = 60.0
"""Seconds after which a driver that is killed has not been killed in a row with the one before it."""


def driver_arguments(arguments: Sequence[str], named: bool) -> list[str]:
    """The command line of the driver. Each of them has the same run.

    Args:
        arguments: the command line with --supervise.
        named: whether it has --run.
    """
    at = arguments.index(SUPERVISE)
    name = [] if named else ["--run", f"{SUPERVISED_PREFIX}{secrets.token_hex(4)}"]
    return [*name, *arguments[:at], *arguments[at + 1 :]]


def supervise(
    arguments: Sequence[str],
    start: Callable[[list[str]], Child] = lambda command: Child(command, stdin=0),
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Run a driver, and another one whenever it was killed; returns the exit code of the last one.

    Args:
        arguments: see `driver_arguments`.
        start: starts a process.
        clock: seconds, monotonic.
        sleep: waits for so many seconds.
    """
    command = [sys.executable, "-m", "edriver", *arguments]
    supervisor = _Supervisor(command, start, clock)
    attempts = tenacity.Retrying(
        retry=tenacity.retry_if_result(lambda code: _is_resumed_after(code) and supervisor.signal is None),
        wait=lambda _: supervisor.pause,
        sleep=sleep,
        before_sleep=_announce,
    )
    with supervisor.passing_signals_on():
        code: int = attempts(supervisor.run_driver)
    return 128 - code if code < 0 else code


def _is_resumed_after(code: int) -> bool:
    """Whether the run continues after a driver has ended in this way."""
    return code < 0 or code == EXIT_REPLACED


def _announce(attempt: tenacity.RetryCallState) -> None:
    assert attempt.outcome is not None
    complain(f"edriver: the driver {exit_text(attempt.outcome.result())}: starting another one")


class _Supervisor:
    """Runs one driver after the other.

    Attributes:
        signal: the one that has asked for the end; None: none has.
        pause: seconds before the next one is to be started.
    """

    def __init__(self, command: list[str], start: Callable[[list[str]], Child], clock: Callable[[], float]) -> None:
        self.signal: int | None = None
        self.pause = 0.0
        self._command = command
        self._start = start
        self._clock = clock
        self._in_a_row = 0
        self._driver: Child | None = None

    def run_driver(self) -> int:
        """Run one to its end; returns its exit code, negative: the signal that it was killed by."""
        if self._driver is not None:
            os.environ[STARTED_AGAIN] = "1"
        began = self._clock()
        # What is sent to the driver before it handles signals waits for that: StopRequests unblocks them.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            self._driver = self._start(self._command)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if self.signal is not None:
            self._pass_on(self.signal, None)
        os.waitid(os.P_PID, self._driver.pid, os.WEXITED | os.WNOWAIT)
        code = self._driver.reap()
        self._in_a_row = 1 if self._clock() - began >= STABLE else self._in_a_row + 1
        self.pause = PAUSES[min(self._in_a_row, len(PAUSES)) - 1]
        return code

    @contextmanager
    def passing_signals_on(self) -> Iterator[None]:
        """Have the driver get the signals that are for it."""
        taken = [number for number in STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]  # nohup means it
        before = {number: signal.signal(number, self._pass_on) for number in taken}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _pass_on(self, number: int, _frame: FrameType | None) -> None:
        self.signal = number
        if self._driver is not None and self._driver.code is None:
            with suppress(ProcessLookupError):
                os.kill(self._driver.pid, number)
