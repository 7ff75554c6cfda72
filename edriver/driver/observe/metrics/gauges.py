"""Prometheus gauges of a run, read when scraped from the same state as StatusService's answers.

Names follow https://prometheus.io/docs/practices/naming. No label has more values than are written here, but for the
members that hold the others up, of which there are a few.
The documentation shows these texts (scripts/docs_site/metrics.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from edriver.common.release import VERSION
from edriver.discovery.poll_filter import Polls
from edriver.driver.core.host_state import HostState, host_standings
from edriver.driver.core.membership import Membership
from edriver.driver.observe.event_history import EventHistory
from edriver.driver.observe.metrics.families import counter, counters, gauge, gauges
from edriver.driver.observe.metrics.time_metrics import TimeMetrics
from edriver.driver.observe.metrics.usage_metrics import UsageMetrics
from edriver.model.records import WorkerState
from edriver.v1 import pace_pb2, status_pb2
from edriver.wire.conversion import epoch_seconds, span_seconds

MAX_REPORTED_NAMES: Final = 20
"""Names of `state.report` that a run has series for: the first ones, should a script make up ever new ones."""

MAX_NAME_LENGTH: Final = 100
"""Characters of the longest such name."""

HOST_STATES: Final = {state: state.name.lower() for state in HostState if state is not HostState.GONE}
"""The states of hosts, as they are counted."""

HOSTS_HELP: Final = (
    "Hosts: starting, their agent is on its way; used, with a worker in each slot; partly_used; idle; leaving, drained "
    "or no longer named by discovery, but with workers still on them; drained; quarantined, left alone because their "
    "workers fail; unreachable, their agent could not be started, was lost, or is silent."
)


PLACES: Final = {
    status_pb2.CHECKPOINT_PLACE_MEMORY: "memory",
    status_pb2.CHECKPOINT_PLACE_COPIES: "copies",
    status_pb2.CHECKPOINT_PLACE_DISK: "disk",
}
"""Where checkpoints that were in memory are, as labels."""


class RunGauges(Collector):
    """The state of a run.

    Args:
        run_id: the run.
        membership: the state of the core; only read.
        event_history: the events, and the workers' progress; only read.
        polls: how discovery fares; read only.
        usage: what hosts and workers use; None: it is not known.
    """

    def __init__(
        self,
        run_id: str,
        membership: Membership,
        event_history: EventHistory,
        polls: Polls,
        usage: UsageMetrics | None = None,
    ) -> None:
        self._usage = usage
        self._run_id = run_id
        self._membership = membership
        self._event_history = event_history
        self._polls = polls
        self._names: set[str] = set()
        self._time = TimeMetrics()

    def collect(self) -> list[Metric]:
        """All of it, as it is now."""
        used = () if self._usage is None else self._usage.families()
        return [
            *self._of_run(),
            *self._of_places(),
            *self._of_progress(),
            *self._of_memory_checkpoints(),
            *self._of_discovery(),
            *used,
        ]

    def _of_run(self) -> Iterator[Metric]:
        membership = self._membership
        settings, view = membership.settings, self._event_history.view
        yield InfoMetricFamily(
            "edriver_run",
            "Always 1; joins the id of the run to everything from the same target.",
            value={"run_id": self._run_id, "version": VERSION},
        )
        yield gauge(
            "run_start_timestamp_seconds", "When the run began, in seconds since the epoch.", self._event_history.began
        )
        yield gauge("size", "Workers in the current round; 0 between two rounds.", view.size)
        yield gauge("np", "Workers that the run starts with: -np.", settings.np)
        yield gauge("min_np", "The smallest number of workers with which the run continues: --min-np.", settings.min_np)
        yield gauge("max_np", "The largest number of workers that the run may use: --max-np.", settings.max_np)
        yield gauge(
            "size_limit",
            "The largest number of workers from now on: --max-np, or the size given to edriver resize.",
            membership.sizes.limit,
        )
        ends = {
            "failure": view.count("failures"),
            "preemption": view.count("preemptions"),
            "resize": view.count("resizes"),
            "unproven": view.count("unproven"),
        }
        yield counters(
            "interruptions",
            "Rounds that ended before training was done; the last one of a run that fails has no successor.",
            "cause",
            ends,
        )

    def _of_places(self) -> Iterator[Metric]:
        membership = self._membership
        roster = membership.roster
        workers = Counter(worker.state for worker in roster.workers.values())
        yield gauges("workers", "Worker processes.", "state", {state.value: workers[state] for state in WorkerState})
        hosts = Counter(standing.state for standing in host_standings(membership).values())
        yield gauges("hosts", HOSTS_HELP, "state", {name: hosts[state] for state, name in HOST_STATES.items()})

    def _of_pace(self, now: float) -> Iterator[Metric]:
        pace = self._event_history.pace
        hold_up = pace.hold_up()
        yield gauge(
            "hold_up_seconds",
            "Seconds without a step in a running round, because members wait for others; 0 while steps are made.",
            0.0 if hold_up is None else max(0.0, now - epoch_seconds(hold_up.start_time)),
        )
        waited_for = GaugeMetricFamily(
            "edriver_waited_for",
            "1 for each member (at most 8) that others wait for while no step is made, with its activity.",
            labels=["rank", "activity"],
        )
        for each in [] if hold_up is None else hold_up.waited_for:
            activity = pace_pb2.WorkerActivity.Name(each.activity).removeprefix("WORKER_ACTIVITY_").lower()
            waited_for.add_metric([str(each.rank), activity], 1.0)
        yield waited_for
        slow = GaugeMetricFamily(
            "edriver_straggler_ratio",
            "For each member that is slower than the others (at most 8): its own part of a step, without waiting, "
            "divided by the median of the others'. The reason is loading, computing or processor.",
            labels=["rank", "reason"],
        )
        for straggler in pace.stragglers():
            reason = pace_pb2.StragglerReason.Name(straggler.reason).removeprefix("STRAGGLER_REASON_").lower()
            slow.add_metric([str(straggler.rank), reason], straggler.ratio)
        yield slow

    def _of_progress(self) -> Iterator[Metric]:
        tracker, steps_lost = self._event_history.tracker, self._event_history.view.steps_lost
        progress = tracker.progress()
        steps = progress.steps if progress else 0
        if self._event_history.ledger.counts_steps:
            yield gauge(
                "step",
                "Steps (boundaries) that count, over all rounds; goes back when steps are lost. Absent in restart "
                "mode.",
                steps,
            )
            yield counter(
                "steps",
                "Steps made, including those that had to be made again; absent in restart mode.",
                steps + steps_lost,
            )
            yield counter("steps_lost", "Steps that had to be made again; absent in restart mode.", steps_lost)
        yield counter(
            "samples",
            "Samples that all workers together have trained on, by the ElasticSampler; those made again count again.",
            tracker.samples.total,
        )
        yield from self._time.of(self._event_history.ledger, self._event_history.now())
        yield from self._of_pace(self._event_history.now())
        yield counter("commits", "Commits; one that four workers make counts four times.", tracker.commits.count)
        yield counter(
            "commit_seconds",
            "Seconds that scripts waited for commits, of all workers together.",
            tracker.commits.seconds,
        )
        yield counter("commit_bytes", "Bytes of tensors that were committed.", tracker.commits.nbytes)
        checkpoints = tracker.checkpoints
        yield counter("checkpoints", "Checkpoints that were written to disk.", checkpoints.count)
        yield counter(
            "checkpoint_failures",
            "Checkpoints that could not be written, for example because the disk was full.",
            checkpoints.failures,
        )
        yield counter(
            "checkpoint_seconds",
            "Seconds that writing checkpoints took, in the background of training.",
            checkpoints.seconds,
        )
        yield counter("checkpoint_bytes", "Bytes of the checkpoints that were written.", checkpoints.nbytes)
        yield gauge("checkpoint_step", "The step of the last checkpoint that was written.", checkpoints.steps)
        if self._event_history.ledger.counts_steps:
            rate = progress.step_rate if progress else 0.0
            yield gauge("steps_per_second", "Steps per second, over the last 10 s; absent in restart mode.", rate)
        if progress is None:
            return
        if progress.HasField("epoch"):
            yield gauge("epoch", "The ElasticSampler's epoch.", progress.epoch)
            yield gauge("epoch_samples", "Samples in an epoch.", progress.samples)
            yield gauge(
                "epoch_samples_done",
                "Samples of this epoch that all workers together have done.",
                progress.samples_done,
            )
            yield gauge(
                "samples_per_second",
                "Samples per second of all workers together, over the last 10 s.",
                progress.sample_rate,
            )
        for name in sorted(progress.reported):
            if len(self._names) < MAX_REPORTED_NAMES and len(name) <= MAX_NAME_LENGTH:
                self._names.add(name)
        reported = {name: value for name, value in progress.reported.items() if name in self._names}
        yield gauges("reported", "The value that rank 0 last gave to state.report under this name.", "name", reported)

    def _of_memory_checkpoints(self) -> Iterator[Metric]:
        newest = {PLACES[status.place]: status for status in self._event_history.checkpoints.messages()}
        if not newest:
            return
        memory, now = self._membership.memory, self._event_history.now()
        yield gauges(
            "memory_checkpoint_step",
            "The step of the newest whole checkpoint in memory, of the newest that has copies on other hosts, and of "
            "the last one that was written from there to disk.",
            "place",
            {place: status.step for place, status in newest.items()},
        )
        yield gauges(
            "memory_checkpoint_age_seconds",
            "How long it has been the newest.",
            "place",
            {place: max(0.0, now - epoch_seconds(status.time)) for place, status in newest.items()},
        )
        in_memory = newest.get(PLACES[status_pb2.CHECKPOINT_PLACE_MEMORY])
        if in_memory is not None and in_memory.HasField("save_time"):
            yield gauge(
                "memory_checkpoint_save_seconds",
                "How long the save of the newest has held up the training loop, on the slowest rank.",
                span_seconds(in_memory.save_time),
            )
        yield gauges(
            "memory_checkpoint_delay_seconds",
            "How long after its save the newest there was complete.",
            "place",
            {place: span_seconds(status.delay) for place, status in newest.items() if status.HasField("delay")},
        )
        held = [held for host in self._membership.roster.hosts if (held := memory.held(host)) is not None]
        yield gauge(
            "memory_checkpoint_bytes", "Memory that checkpoints use, on all hosts.", sum(each.used for each in held)
        )
        yield gauge(
            "memory_checkpoint_limit_bytes",
            "Memory that checkpoints may use, on all hosts: --checkpoint-memory of each.",
            sum(each.limit for each in held),
        )

    def _of_discovery(self) -> Iterator[Metric]:
        polls = self._polls
        results = {"answered": polls.answered, "failed": polls.failed}
        yield counters(
            "discovery_polls",
            "Polls of discovery; an empty answer that is not believed yet counts as failed.",
            "result",
            results,
        )
        yield gauge("discovery_last_poll_seconds", "How long the last poll of discovery took.", polls.seconds)
        if polls.last_answer is not None:
            yield gauge(
                "discovery_last_success_timestamp_seconds",
                "When discovery last gave an answer that was believed, in seconds since the epoch.",
                polls.last_answer,
            )
