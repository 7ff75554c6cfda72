"""A lock that a worker takes and never releases: a process that waits for it learns at once that the worker has ended.

A process that dies with a few hundred MB takes its time: the kernel gives its memory back first, and only then closes
its connections and tells its parent (kernel/exit.c: exit_mm comes before exit_files and exit_notify). That was 20 to 30
ms of processor time for a worker that has imported torch. A robust mutex (pthread_mutexattr_setrobust(3)) in shared
memory is freed before all that, by the kernel, whatever the process died of.

The same memory has the worker's phase, which its agent can read while native code holds the GIL, and in restart mode
the script's step, which its agent reads once the process has ended, of whatever.

An end of file at a worker's sockets proves nothing: forked children, such as those of data loaders, keep them open.

The end is seen early, its cause is not: that is known from the reap. Forked children do not hold the lock.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from pathlib import Path

from edriver.model.stall_limits import Phase

_MUTEX_BYTES = 64
"""Room for a pthread_mutex_t: 40 bytes with glibc on x86-64, 48 on aarch64."""

_PHASE_OFFSET = 128
"""Where in the file the phase stands: one byte, 0 for none."""

_STEP_OFFSET = 136
"""Where the script's step stands: a 64-bit number, 0 if it is not known."""

_ALL_PHASES = tuple(Phase)

_PTHREAD_PROCESS_SHARED = 1
_PTHREAD_MUTEX_ROBUST = 1


class LifeLock:
    """A robust mutex in a file that two processes map.

    Args:
        path: the file, which must be there.

    Raises:
        OSError: it cannot be mapped.
    """

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        self._mutex = (ctypes.c_char * _MUTEX_BYTES).from_buffer(self._memory)
        self._step = ctypes.c_uint64.from_buffer(self._memory, _STEP_OFFSET)
        self._libc = ctypes.CDLL(None)

    @classmethod
    def create(cls, path: Path) -> LifeLock:
        """Make the file, with a lock in it that is free.

        Raises:
            OSError: the file cannot be made.
        """
        path.write_bytes(bytes(mmap.PAGESIZE))
        lock = cls(path)
        attributes = (ctypes.c_char * _MUTEX_BYTES)()
        for result in (
            lock._libc.pthread_mutexattr_init(attributes),
            lock._libc.pthread_mutexattr_setpshared(attributes, _PTHREAD_PROCESS_SHARED),
            lock._libc.pthread_mutexattr_setrobust(attributes, _PTHREAD_MUTEX_ROBUST),
            lock._libc.pthread_mutex_init(lock._mutex, attributes),
        ):
            if result != 0:
                raise OSError(result, os.strerror(result))
        return lock

    def hold(self) -> None:
        """Take it for as long as the calling thread lives: the main thread's part.

        Raises:
            OSError: it cannot be taken.
        """
        result = self._libc.pthread_mutex_lock(self._mutex)
        if result != 0:
            raise OSError(result, os.strerror(result))
        # An interpreter that ends normally would unmap the memory, and the lock would never be freed.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._mutex))

    def show_phase(self, phase: Phase | None) -> None:
        """Say what the worker is doing; None: it is in no round."""
        self._memory[_PHASE_OFFSET] = 0 if phase is None else _ALL_PHASES.index(phase) + 1

    @property
    def phase(self) -> Phase | None:
        """The phase that the worker reported last; None: it is in no round."""
        number = self._memory[_PHASE_OFFSET]
        return _ALL_PHASES[number - 1] if 0 < number <= len(_ALL_PHASES) else None

    def show_step(self, step: int) -> None:
        """Say which step the script has made last."""
        self._step.value = step

    @property
    def step(self) -> int:
        """The step that the script has made last; 0: not known."""
        return self._step.value

    def wait_for_end(self) -> bool:
        """Wait until the lock's holder has ended; returns whether there was one."""
        return bool(self._libc.pthread_mutex_lock(self._mutex) == errno.EOWNERDEAD)
