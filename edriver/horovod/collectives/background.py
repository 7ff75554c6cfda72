"""Operations that nobody waits for: a thread of each process set carries them out, in the order of the calls.

The members' agreement on such an operation is under way when the call returns. What follows it has to wait for the
slowest of them; the training thread does not. The thread's collectives are in a separate group (a lane), so it
makes no difference when they come between those of the training thread. One set's operations do not wait for another's.
The lane is made by the training thread where a round begins: groups that two threads make at the same time wait for one
another in the store, whose connection they share.

A runner lives for one round. Once that is over it begins nothing more, and what is waited for ends with an error.

An agreement on a `*_async` operation counts as a collective in the set's own group. A lane costs a group (some
milliseconds) in each round of `hvd.elastic.run`. What the thread is waiting in when the round is over is severed with
the round's other connections.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

from edriver.horovod.collectives.handles import Pending, wait_for
from edriver.horovod.errors import HorovodInternalError
from edriver.horovod.process_sets import CollectiveLane, ProcessSet

_OVER = "the round in which this operation was started is over"


class Task:
    """An operation that has been started; the caller holds a handle to it.

    Args:
        carry_out: waits for the members' agreement, and starts the agreed operation.
    """

    def __init__(self, carry_out: Callable[[], Pending]) -> None:
        self._carry_out: Callable[[], Pending] | None = carry_out
        self._pending: Pending | None = None
        self._error: BaseException | None = None
        self._settling = threading.Lock()
        self._unsettled = threading.Lock()
        self._unsettled.acquire()

    def run(self) -> None:
        """Carry it out, as far as that takes the members' agreement. On the runner's thread."""
        carry_out, pending, error = self._carry_out, None, None
        try:
            assert carry_out is not None, "it is run once"
            pending = carry_out()
        except BaseException as raised:  # noqa: BLE001  whoever waits for it raises it
            error = raised
        self._settle(pending, error)

    def abandon(self) -> None:
        """Cancel: the operation will not run, or callers need not wait for it any longer."""
        self._settle(None, HorovodInternalError(_OVER))

    def settled(self) -> bool:
        """Whether the members have agreed, or could not."""
        return not self._unsettled.locked()

    def done(self) -> bool:
        """Whether `result` would not wait."""
        return self.settled() and (self._pending is None or self._pending.done())

    def wait(self) -> None:
        """Wait until the members have agreed, or could not."""
        wait_for(self._unsettled)

    def settle(self) -> None:
        """Wait for the members' agreement. Raises what `result` does."""
        self.wait()
        if self._error is not None:
            raise self._error

    def result(self) -> Any:
        """Wait for it; returns its result.

        Raises:
            MismatchError: the members call different things.
            ValueError: the call cannot be, on any member.
            HorovodInternalError: a member is gone.
        """
        self.settle()
        assert self._pending is not None, "there was no error"
        return self._pending.result()

    def _settle(self, pending: Pending | None, error: BaseException | None) -> None:
        with self._settling:
            if self._unsettled.locked():
                self._pending, self._error, self._carry_out = pending, error, None
                self._unsettled.release()


class Runner:
    """Carries out a set's operations in one round.

    Args:
        lane: where.
    """

    def __init__(self, lane: CollectiveLane) -> None:
        self.lane = lane
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._current: Task | None = None
        self._last: Task | None = None
        self._closed = False

    def add(self, task: Task) -> None:
        """Carry out an operation, once those before it have begun. Operations of one set are added by one thread."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="edriver-horovod", daemon=True)
            self._thread.start()
        self._last = task
        self._tasks.put(task)

    def drain(self) -> None:
        """Wait until all operations have begun, or failed. After that the lane is the caller's, until one is added."""
        if self._last is not None:
            self._last.wait()

    def close(self) -> None:
        """Begin nothing more."""
        self._closed = True
        while not self._tasks.empty():
            if (task := self._tasks.get()) is not None:
                task.abandon()
        if (current := self._current) is not None:
            current.abandon()
        self._tasks.put(None)

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            self._current = task
            if self._closed:
                task.abandon()
            else:
                task.run()
            self._current = None
            del task


def runner_of(members: ProcessSet) -> Runner | None:
    """What carries out a set's operations in this round; None: their lane has not been made (`ProcessSet.prepare`)."""
    if members.background is None and (lane := members.background_lane()) is not None:
        members.background = Runner(lane)
    return members.background if isinstance(members.background, Runner) else None
