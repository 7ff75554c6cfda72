"""What a state reports to observers: its copies, the progress of its epoch, and the values of its script."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from edriver.model.limits import MAX_REPORTED_NAME_LENGTH, MAX_REPORTED_NAMES, is_reported_name

MAX_VALUE_NAMES: Final = MAX_REPORTED_NAMES
"""Most names that a script may report values under."""


@dataclass(slots=True)
class _Commits:
    """All commits of this process, of whichever state. Others read it at any time.

    Attributes:
        count: how many there were,
        nbytes: the bytes of all of them,
        seconds: and for how long the script waited.
    """

    count: int = 0
    nbytes: int = 0
    seconds: float = 0.0

    def add(self, nbytes: int, seconds: float) -> None:
        """Count one."""
        self.count += 1
        self.nbytes += nbytes
        self.seconds += seconds


commits = _Commits()


@dataclass(slots=True)
class _CheckpointsWritten:
    """All checkpoints that this process has written to disk. Others read it at any time.

    Attributes:
        count: how many there were,
        nbytes: the bytes of all of them,
        seconds: and how long it took to write them, beside the training loop.
        failures: how many could not be written.
        steps: the steps of the last one.
    """

    count: int = 0
    nbytes: int = 0
    seconds: float = 0.0
    failures: int = 0
    steps: int = 0

    def add(self, steps: int, nbytes: int, seconds: float) -> None:
        """Count one."""
        self.count += 1
        self.nbytes += nbytes
        self.seconds += seconds
        self.steps = steps


checkpoints = _CheckpointsWritten()


@dataclass(slots=True)
class Copied:
    """How much a state has copied.

    Attributes:
        received_bytes: of the tensors that the last sync received; 0: this worker held the state.
        commit_bytes: of the last commit's tensors; 0: there was none.
        commit_seconds: for how long the script waited for it.
    """

    received_bytes: int = 0
    commit_bytes: int = 0
    commit_seconds: float = 0.0

    def commit(self, seconds: float) -> None:
        """Count a commit."""
        self.commit_seconds = seconds
        commits.add(self.commit_bytes, seconds)


class SamplesDone(NamedTuple):
    """The progress of an epoch.

    Attributes:
        epoch: the epoch.
        done: how many of its samples all workers together have done.
        samples: how many it has.
    """

    epoch: int
    done: int
    samples: int


def with_reports(before: Mapping[str, float], values: Mapping[str, float]) -> dict[str, float]:
    """What a script has reported last, by name.

    Raises:
        ValueError: there are more than MAX_VALUE_NAMES names, a name is too long or not printable, or a value is no
            number.
        TypeError: a value is no number.
    """
    reported = {**before, **{name: float(value) for name, value in values.items()}}
    if len(reported) > MAX_VALUE_NAMES:
        raise ValueError(f"report() takes up to {MAX_VALUE_NAMES} names, and was given {len(reported)}")
    for name in values:
        if not is_reported_name(name):
            raise ValueError(
                f"report() takes names of printable characters, {MAX_REPORTED_NAME_LENGTH} at most, and was given "
                f"{name[:100]!a}"
            )
    return reported
