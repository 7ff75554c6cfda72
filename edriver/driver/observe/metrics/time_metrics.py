"""Where the wall time has gone, as Prometheus reads it.

The documentation shows these texts (scripts/docs_site/metrics.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from edriver.driver.observe.metrics.families import counters, gauge
from edriver.driver.observe.time_ledger import TimeLedger
from edriver.text.time_spent import seconds_by_kind


class TimeMetrics:
    """The ledger's numbers. Its seconds by kind are counted once they are certain: a counter does not fall. Goodput is
    that of the counters of the same scrape, a few seconds behind what status and page show until the run ends.
    """

    def __init__(self) -> None:
        """Nothing has been shown."""
        self._seconds: dict[str, float] = {}  # the most that was

    def of(self, ledger: TimeLedger, now: float) -> Iterator[Metric]:
        """All of them, at a time in seconds since the epoch."""
        for kind, seconds in seconds_by_kind(ledger.settled(now)).items():
            self._seconds[kind] = max(seconds, self._seconds.get(kind, 0.0))
        yield counters(
            "time_seconds",
            "Where the run's wall time has gone: training, steps that count; repeating, steps made again; unknown, "
            "rounds in restart mode, in which edriver sees no steps; recovering, from the last boundary before a "
            "change "
            "until the next round's workers held the state; waiting, the part of that in which hosts or workers were "
            "missing; stalled, no step in a running round, counted once it is over; booting; ending, after the last "
            "step.",
            "kind",
            self._seconds,
        )
        if training := self._seconds["training"]:
            yield gauge(
                "goodput_ratio",
                "The share of the wall time so far that went into steps that count: edriver_time_seconds_total of kind "
                "training, divided by that of all kinds; absent before the first step is counted, and in restart mode.",
                training / sum(self._seconds.values()),
            )
        if ledger.last_step is not None:
            yield gauge(
                "last_step_timestamp_seconds",
                "When the last known step was made, in seconds since the epoch.",
                ledger.last_step,
            )
