"""The table of metrics, from the registry that Prometheus is answered from."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from edriver.discovery.poll_filter import Polls
from edriver.driver.core.membership import Membership
from edriver.driver.observe.event_history import EventHistory
from edriver.driver.observe.hosts.usage import UsageTracker
from edriver.driver.observe.metrics.counters import EventCounters
from edriver.driver.observe.metrics.gauges import RunGauges
from edriver.driver.observe.metrics.usage_metrics import UsageMetrics
from edriver.driver.observe.progress import ProgressTracker
from edriver.model import events
from edriver.model.hosts import Host, HostSet
from edriver.model.ids import NO_VERSION, RoundId
from edriver.model.settings import Settings
from edriver.model.store_address import StoreAddress
from edriver.v1 import agent_pb2, notification_pb2, resources_pb2, rounds_pb2, status_pb2
from scripts.docs_site.markdown import cell, table

_OPEN = frozenset({"run_id", "version", "name", "end", "host", "slot", "gpu", "rank", "reason", "activity"})
"""Labels whose values differ from run to run."""

_NOTHING_TO_SEE = frozenset({"le"})


def table_of(families: Iterable[Metric]) -> str:
    """The table of some metrics."""
    rows = [(f"`{_name(family)}`", _type(family), _labels(family), cell(family.documentation)) for family in families]
    return table(("metric", "type", "labels", "what it says"), rows)


def page() -> str:
    """The table of all metrics that a run has."""
    return table_of(sample_registry().collect())


def sample_registry() -> CollectorRegistry:
    """The metrics of a run in which all there is to be seen has happened."""
    membership = Membership(Settings(np=1, min_np=1, max_np=1), now=0.0, draw=lambda: 0.5)
    ticks = itertools.count(1.0, 10.0)  # seconds: what is counted is certain at the next look
    event_history = EventHistory(membership, ProgressTracker(lambda: 1.0), lambda: next(ticks))
    polls = Polls()
    polls.add(1.0, 2.0, believed=True)
    for event in (
        events.HostsObserved(HostSet((Host("a", 1),))),
        events.AgentConnected("a", 1),
        events.WorkerWaiting(1, 1, NO_VERSION, StoreAddress("127.0.0.1", 1), ""),
        events.FirstBoundaryPassed(1, RoundId(1, 1), {}),
    ):
        event_history.take(event, membership.step(event, 1.0), None, [])
    standing = notification_pb2.WorkerProgress(
        round_id=rounds_pb2.RoundId(incarnation=1, n=1), boundaries=1, epoch=0, samples_done=1, samples=2
    )
    standing.boundary_time.FromSeconds(1000)  # not before this round began, so it has trained
    standing.reported["loss"] = 1.0
    event_history.record_progress(agent_pb2.WorkerHeartbeat(worker_id=1, progress=standing))
    registry = CollectorRegistry()
    ended = status_pb2.RunEnded(end=status_pb2.RUN_END_DONE)
    event_history.view.fold(status_pb2.Event(seq=event_history.last_seq + 1, run_ended=ended))
    registry.register(EventCounters("", event_history))
    usage = UsageMetrics(sample_usage(membership), membership.roster)
    registry.register(RunGauges("", membership, event_history, polls, usage=usage))
    return registry


def sample_usage(membership: Membership) -> UsageTracker:
    """What host a and its worker use, of whatever there is."""
    usage = UsageTracker(membership.roster)
    used = resources_pb2.HostUsage(gpus=[resources_pb2.GpuUsage(utilization=0.5)])
    beat = agent_pb2.WorkerHeartbeat(worker_id=1, usage=resources_pb2.WorkerUsage(gpu_memory_bytes=1))
    usage.record("a", agent_pb2.Heartbeat(workers=[beat], usage=used))
    return usage


def _name(family: Metric) -> str:
    return f"{family.name}{ {'counter': '_total', 'info': '_info'}.get(family.type, '') }"


def _type(family: Metric) -> str:
    return "gauge" if family.type == "info" else family.type


def _labels(family: Metric) -> str:
    values: dict[str, list[str]] = {name: [] for name in getattr(family, "_labelnames", ()) if name in _OPEN}
    for sample in family.samples:
        for label, value in sample.labels.items():
            seen = values.setdefault(label, [])
            if value not in seen and label not in _NOTHING_TO_SEE:
                seen.append(value)
    return "; ".join(
        f"`{label}`" if label in _OPEN else f"`{label}`: {', '.join(seen)}"
        for label, seen in values.items()
        if label not in _NOTHING_TO_SEE
    )
