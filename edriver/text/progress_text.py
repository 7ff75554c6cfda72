"""The training progress, as text."""

from __future__ import annotations

from google.protobuf.timestamp_pb2 import Timestamp

from edriver.text.phrases import count_text
from edriver.text.printable import printable
from edriver.v1 import status_pb2
from edriver.wire.conversion import epoch_seconds, span_seconds


def mode_text(mode: status_pb2.RunMode.ValueType) -> str:
    """The mode of a run: elastic mode, restart mode."""
    return f"{status_pb2.RunMode.Name(mode).removeprefix('RUN_MODE_').lower()} mode"


def knows_steps(spent: status_pb2.TimeSpent) -> bool:
    """Whether it is known what steps the script makes, and which of them count; it is not in restart mode."""
    return not spent.HasField("unknown")


def progress_text(progress: status_pb2.Progress) -> str:
    """One line: steps, the epoch and what is left of it, what the script reports; empty if nothing of that is known."""
    parts = [f"step {progress.steps}, {progress.step_rate:.1f} steps/s"] if knows_steps(progress.time_spent) else []
    if progress.without_boundary:
        parts = ["steps are not counted, because the script passes no boundary"]
    if progress.HasField("epoch") and progress.samples:
        part = f"epoch {progress.epoch} {100 * progress.samples_done // progress.samples} % done"
        if progress.sample_rate > 0:
            part += f", {time_text(left_of_epoch(progress))} left of it, {progress.sample_rate:.0f} samples/s"
        parts.append(part)
    parts += [f"{name} {value:g}" for name, value in sorted(progress.reported.items())]
    return "; ".join(parts)


def progress_line(progress: status_pb2.Progress, size: int, trouble: str = "") -> str:
    """One line to replace the one before; empty if nothing of the progress is known.

    Args:
        progress: the progress of training.
        size: the number of workers that train.
        trouble: why no step is made; empty while steps are made.
    """
    epoch = [epoch_text(progress)] if progress.HasField("epoch") and progress.samples else []
    return "  ".join([*epoch, *([printable(trouble)] if trouble else progress_words(progress, size))])


def epoch_text(progress: status_pb2.Progress) -> str:
    """The epoch, and how much of it is done, in the same width as long as the epoch lasts."""
    return f"epoch {progress.epoch} {100 * progress.samples_done // progress.samples:3} %"


def progress_words(progress: status_pb2.Progress, size: int) -> list[str]:
    """What is worth knowing of the progress beside the epoch, the most important first; nothing if the script lets
    nothing be known of it, as most do in restart mode.

    Args:
        progress: the progress of training.
        size: the number of workers that train.
    """
    known = knows_steps(progress.time_spent)
    words = [f"step {progress.steps}", f"{progress.step_rate:.1f} steps/s"] if known else []
    if progress.HasField("epoch") and progress.sample_rate > 0:
        words += [f"{time_text(left_of_epoch(progress))} left", f"{progress.sample_rate:.0f} samples/s"]
    reported = [f"{printable(name)} {value:g}" for name, value in sorted(progress.reported.items())]
    if not words and not reported and not progress.HasField("epoch"):
        return []
    return [*words, count_text(size, "worker"), *reported]


def left_of_epoch(progress: status_pb2.Progress) -> float:
    """Seconds until the epoch is done at this rate, which is above 0."""
    return (progress.samples - progress.samples_done) / progress.sample_rate


def lasted(run: status_pb2.Run) -> float:
    """Seconds that a run has lasted, even if the driver's date was changed meanwhile."""
    if run.HasField("uptime"):
        return span_seconds(run.uptime)
    return max(0.0, epoch_seconds(run.now) - epoch_seconds(run.start_time))


def age(run: status_pb2.Run, since: Timestamp) -> float:
    """Seconds since something began in a run: never less than none, nor more than the run has lasted."""
    return min(max(0.0, epoch_seconds(run.now) - epoch_seconds(since)), lasted(run))


def length_text(seconds: float) -> str:
    """A span of time, exactly: 120 ms, 7.5 s, 3 min 20 s."""
    if seconds >= 60:
        return time_text(seconds)
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.0f} ms"


def time_text(seconds: float) -> str:
    """A span of time: 7 s, 3 min 20 s, 5 h 10 min, 2 d 3 h. 0 s where a clock was set back."""
    whole = max(0, int(seconds))
    minutes, second = divmod(whole, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days} d {hour} h"
    if hours:
        return f"{hours} h {minute} min"
    return f"{minutes} min {second} s" if minutes else f"{second} s"
