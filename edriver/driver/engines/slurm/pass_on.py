"""Passes the notice that Slurm gives a step on to the agent, which is not part of the step: run by path, with its pid.

It has no children, and imports nothing but the standard library: it waits beside an agent for as long as that lives.

Slurm announces a time limit to the job's script alone (`--signal=B:`), and a preemption to its steps alone, there to
every process. A worker would die of that, so the agent takes the script's place, and a step beside it does nothing but
pass the signal on to it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys


def main() -> None:
    """Wait for SIGTERM; send SIGUSR1 to the process of the given id, and end: what continues would hold up the job."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    signal.sigwait({signal.SIGTERM})
    with contextlib.suppress(ProcessLookupError):
        os.kill(int(sys.argv[1]), signal.SIGUSR1)


if __name__ == "__main__":
    main()
