"""Prometheus metrics of what a run's events come to, read when scraped. Those of how it stands now: `gauges.py`.

Names follow https://prometheus.io/docs/practices/naming. No label has more values than are written here, or in
gauges.py. The documentation shows these texts (scripts/docs_site/metrics.py). This file imports prometheus_client,
which a run without --metrics-port does without.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from edriver.driver.observe.event_history import EventHistory
from edriver.driver.observe.metrics.families import counter, counters
from edriver.runview.distribution import Distribution
from edriver.text.cause_names import INTERRUPTION_NAMES, RUN_END_NAMES
from edriver.v1 import status_pb2

INTERRUPTION_LABELS: Final = {
    name: name.replace(" ", "_")
    for kind, name in INTERRUPTION_NAMES.items()
    if kind != status_pb2.INTERRUPTION_KIND_UNSPECIFIED
}


class EventCounters(Collector):
    """What has happened in a run, also under the drivers before this one.

    Args:
        run_id: the run.
        event_history: has the view of the run; only read.
    """

    def __init__(self, run_id: str, event_history: EventHistory) -> None:
        self._run_id = run_id
        self._event_history = event_history

    def collect(self) -> Iterator[Metric]:
        """All of it, as it is now."""
        view = self._event_history.view
        end = GaugeMetricFamily(
            "edriver_run_end_info",
            "Always 1; present once the run has ended: done, stopped or failed.",
            labels=["run_id", "end"],
        )
        if view.ended is not None:
            end.add_metric([self._run_id, RUN_END_NAMES[view.ended.run_ended.end]], 1.0)
        yield end
        yield counters("rounds", "Rounds that have begun.", "cause", view.round_counts)
        recovery = HistogramMetricFamily(
            "edriver_recovery_seconds",
            "Length of each phase of forming a round. The phases follow one another, so their sums add up; cause start "
            "is the first round, which is not a recovery.",
            labels=["phase", "cause"],
        )
        for cause, phases in view.phases.items():
            for phase, lengths in phases.items():
                _add(recovery, [phase, cause], lengths)
        yield recovery
        interruption = HistogramMetricFamily(
            "edriver_interruption_seconds",
            "Whole length of each time without steps, from the last boundary before it until training continued.",
            labels=["kind"],
        )
        for name, label in INTERRUPTION_LABELS.items():
            _add(interruption, [label], view.interruption_lengths[name])
        yield interruption
        yield counters(
            "script_warnings",
            "What looks like a mistake of the script; each is counted once. no_boundary: steps are made without a "
            "boundary; same_samples: two ranks train on the same samples; not_finite: a value given to state.report is "
            "NaN or infinite, in any rank.",
            "kind",
            view.script_warnings,
        )
        yield counter("syncs", "How often a worker received tensors of the state.", view.syncs.count)
        yield counter(
            "sync_seconds",
            "Seconds that workers took to receive the state, once the process group of the round existed.",
            view.syncs.seconds,
        )
        yield counter("sync_bytes", "Bytes of tensors that workers received with the state.", view.syncs.nbytes)


def _add(family: HistogramMetricFamily, labels: list[str], lengths: Distribution) -> None:
    buckets = [("+Inf" if bound == float("inf") else str(bound), count) for bound, count in lengths.cumulative()]
    family.add_metric(labels, buckets=buckets, sum_value=lengths.sum)
