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
    """Counts all commits of this process, of whichever state. Other threads may read it at any time.

    Attributes:
        count: the number of commits.
        nbytes: their total size, in bytes.
        seconds: the total time that the script waited for them.
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
    """Counts the checkpoints that this process has written to disk. Other threads may read it at any time.

    Attributes:
        count: the number of checkpoints.
        nbytes: their total size, in bytes.
        seconds: the total time that writing them took, in parallel with the training loop.
        failures: the number of checkpoints that could not be written.
        steps: the number of steps of the last checkpoint.
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
    """The amount of data that a state has copied.

    Attributes:
        received_bytes: the size of the tensors that the last sync received; 0 if this worker held the state.
        commit_bytes: the size of the last commit's tensors; 0 before the first commit.
        commit_seconds: the time that the script waited for the last commit.
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
        done: the number of its samples that all workers together have done.
        samples: the number of its samples.
    """

    epoch: int
    done: int
    samples: int


def with_reports(before: Mapping[str, float], values: Mapping[str, float]) -> dict[str, float]:
    """The values that a script reported last, by name.

    Raises:
        ValueError: there are more than MAX_VALUE_NAMES names, a name is too long or not printable, or a string is not
            a number.
        TypeError: a value is not a number.
    """
    reported = {**before, **{name: float(value) for name, value in values.items()}}
    if len(reported) > MAX_VALUE_NAMES:
        raise ValueError(f"report() takes up to {MAX_VALUE_NAMES} names, but got {len(reported)}")
    for name in values:
        if not is_reported_name(name):
            raise ValueError(
                f"report() takes names of printable characters, {MAX_REPORTED_NAME_LENGTH} at most, but got "
                f"{name[:100]!a}"
            )
    return reported
