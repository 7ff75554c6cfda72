"""Prometheus counters of a run, updated by events. Metrics that are read when scraped: `gauges.py`.

Names follow https://prometheus.io/docs/practices/naming. No label has more values than are written here, or in
gauges.py. The documentation shows these texts (scripts/docs_site/metrics.py). This file imports prometheus_client,
which a run without --metrics-port does without.
"""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

from edriver.text.cause_names import CAUSE_NAMES, INTERRUPTION_NAMES, RECOVERY_PHASES, RUN_END_NAMES
from edriver.v1 import status_pb2
from edriver.wire.conversion import epoch_seconds, span_seconds

HISTOGRAM_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Seconds: of a local abort, of a sync of many gigabytes, and what lies between."""


INTERRUPTION_BUCKETS: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
"""Seconds: of a kill, of a worker that was silent for its lease, of a wait for hosts."""

INTERRUPTION_LABELS: Final = {
    kind: name.replace(" ", "_")
    for kind, name in INTERRUPTION_NAMES.items()
    if kind != status_pb2.INTERRUPTION_KIND_UNSPECIFIED
}


class EventMetrics:
    """Counts a run's events.

    Args:
        registry: the registry of the metrics.
        run_id: the run.
    """

    def __init__(self, registry: CollectorRegistry, run_id: str) -> None:
        self._run_id = run_id
        disable_created_metrics()  # type: ignore[no-untyped-call]  # that each series began with the run is known
        self._end = Gauge(
            "edriver_run_end_info",
            "Always 1; there once the run has ended, with how: done, stopped or failed.",
            ["run_id", "end"],
            registry=registry,
        )
        self._rounds = Counter("edriver_rounds", "Rounds that were begun.", ["cause"], registry=registry)
        self._recovery = Histogram(
            "edriver_recovery_seconds",
            "Length of each part of the way into a round. The phases follow one another, so their sums add up; "
            "cause start is the first round, which is no recovery.",
            ["phase", "cause"],
            buckets=HISTOGRAM_BUCKETS,
            registry=registry,
        )
        self._interruption = Histogram(
            "edriver_interruption_seconds",
            "Whole length of each time without steps, from the last boundary before it until training went on.",
            ["kind"],
            buckets=INTERRUPTION_BUCKETS,
            registry=registry,
        )
        self._syncs = Counter("edriver_syncs", "Times that a worker received tensors of the state.", registry=registry)
        self._sync_seconds = Counter(
            "edriver_sync_seconds",
            "Seconds that workers took to receive the state, once the process group of the round existed.",
            registry=registry,
        )
        self._sync_bytes = Counter(
            "edriver_sync_bytes", "Bytes of tensors that workers received with the state.", registry=registry
        )
        for cause in CAUSE_NAMES.values():  # a rate over a series wants its first 0
            self._rounds.labels(cause)
            for phase in RECOVERY_PHASES:
                self._recovery.labels(phase, cause)

        for kind in INTERRUPTION_LABELS.values():
            self._interruption.labels(kind)

    def observe(self, event: status_pb2.Event) -> None:
        """Count one event."""
        if event.HasField("run_ended"):
            self._end.labels(self._run_id, RUN_END_NAMES[event.run_ended.end]).set(1)
        if event.HasField("interruption") and event.interruption.kind in INTERRUPTION_LABELS:
            kind = INTERRUPTION_LABELS[event.interruption.kind]
            self._interruption.labels(kind).observe(span_seconds(event.interruption.duration))
        if (
            event.WhichOneof("kind") != "round"
            or event.round.kind not in CAUSE_NAMES
            or event.round.HasField("end_time")
        ):
            return
        cause = CAUSE_NAMES[event.round.kind]
        if not event.round.HasField("first_step_time"):
            self._rounds.labels(cause).inc()
            return
        for phase in RECOVERY_PHASES:
            self._recovery.labels(phase, cause).observe(
                _valid_duration(span_seconds(getattr(event.round.phases, phase)))
            )
        for member in event.round.members:
            times = member.times
            if times.received_bytes > 0:
                self._syncs.inc()
                self._sync_bytes.inc(times.received_bytes)
                self._sync_seconds.inc(_valid_duration(epoch_seconds(times.synced) - epoch_seconds(times.built)))


def _valid_duration(seconds: float) -> float:
    """A duration between two times that workers have reported; an invalid one counts as 0."""
    return max(0.0, seconds)
