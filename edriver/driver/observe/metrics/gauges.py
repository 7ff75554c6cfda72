"""What Prometheus reads of a run when it asks: how the run stands, from what StatusService answers by, too.

Names follow https://prometheus.io/docs/practices/naming. No label has more values than are written here.
The documentation shows these texts (scripts/docs_site/metrics.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from edriver.common.release import VERSION
from edriver.discovery.poll_filter import Polls
from edriver.driver.core.host_state import HostState, host_standings
from edriver.driver.core.membership import Membership
from edriver.driver.core.roster import WorkerState
from edriver.driver.observe.event_history import EventHistory
from edriver.driver.observe.snapshots import size_of
from edriver.text.time_spent import seconds_by_kind

MAX_REPORTED_NAMES: Final = 20
"""Names of `state.report` that a run has series for: the first ones, should a script make up ever new ones."""

MAX_NAME_LENGTH: Final = 100
"""Characters of the longest such name."""

HOST_STATES: Final = {state: state.name.lower() for state in HostState if state is not HostState.GONE}
"""Where a host can stand, as it is counted."""

HOSTS_HELP: Final = (
    "Hosts: starting, their agent is on its way; used, with a worker in each slot; partly_used; idle; leaving, drained "
    "or no longer named by discovery, but with workers still on them; drained; quarantined, left alone because their "
    "workers fail; unreachable, their agent could not be started, was lost, or is silent."
)


class RunGauges(Collector):
    """How a run stands.

    Args:
        run_id: the run.
        membership: what is known; read only.
        event_history: what has happened, and the workers' progress; only read.
        polls: how discovery fares; read only.
        ask: calls its argument on the event loop and returns the result.
    """

    def __init__(
        self,
        run_id: str,
        membership: Membership,
        event_history: EventHistory,
        polls: Polls,
        ask: Callable[[Callable[[], list[Metric]]], list[Metric]],
    ) -> None:
        self._run_id = run_id
        self._membership = membership
        self._event_history = event_history
        self._polls = polls
        self._ask = ask
        self._names: set[str] = set()
        self._seconds: dict[str, float] = {}  # the most that was shown: a counter does not fall

    def collect(self) -> list[Metric]:
        """All of it, as it is at one moment. Raises what `ask` raises."""
        return self._ask(lambda: [*self._of_run(), *self._of_places(), *self._of_progress(), *self._of_discovery()])

    def _of_run(self) -> Iterator[Metric]:
        membership = self._membership
        settings, budgets = membership.settings, membership.state.budgets
        yield InfoMetricFamily(
            "edriver_run",
            "Always 1; joins the id of the run to everything from the same target.",
            value={"run_id": self._run_id, "version": VERSION},
        )
        yield _gauge(
            "run_start_timestamp_seconds", "When the run began, in seconds since the epoch.", self._event_history.began
        )
        yield _gauge("size", "Workers in the current round; 0 between two rounds.", size_of(membership))
        yield _gauge("np", "Workers that the run was to begin with: -np.", settings.np)
        yield _gauge("min_np", "Fewest workers that the run goes on with: --min-np.", settings.min_np)
        yield _gauge("max_np", "Most workers that the run may use: --max-np.", settings.max_np)
        yield _gauge(
            "size_limit",
            "Most workers from now on: --max-np, or what edriver resize says.",
            membership.state.staffing.most,
        )
        ends = {
            "failure": budgets.failures.total,
            "preemption": budgets.preemptions.total,
            "resize": budgets.resizes.total,
            "unproven": budgets.unproven.total,
        }
        yield _counters(
            "interruptions",
            "Rounds that ended before training was done; the last one of a run that fails has no successor.",
            "cause",
            ends,
        )

    def _of_places(self) -> Iterator[Metric]:
        membership = self._membership
        roster = membership.roster
        workers = Counter(worker.state for worker in roster.workers.values())
        yield _gauges("workers", "Worker processes.", "state", {state.value: workers[state] for state in WorkerState})
        hosts = Counter(standing.state for standing in host_standings(membership.state).values())
        yield _gauges("hosts", HOSTS_HELP, "state", {name: hosts[state] for state, name in HOST_STATES.items()})

    def _of_progress(self) -> Iterator[Metric]:
        tracker = self._event_history.tracker
        progress = tracker.progress()
        steps = progress.steps if progress else 0
        yield _gauge("step", "Steps (boundaries) that count, of all rounds; goes back when steps are lost.", steps)
        yield _counter("steps", "Steps made, including those that had to be made again.", steps + tracker.steps_lost)
        yield _counter("steps_lost", "Steps that had to be made again.", tracker.steps_lost)
        ledger, now = self._event_history.ledger, self._event_history.now()
        for kind, seconds in seconds_by_kind(ledger.time_spent(ledger.settled(now))).items():
            self._seconds[kind] = max(seconds, self._seconds.get(kind, 0.0))
        yield _counters(
            "time_seconds",
            "Where the run's wall time has gone: training, steps that count; repeating, steps made again; recovering, "
            "from the last boundary before a change until the next round's workers held the state; waiting, the part "
            "of that in which hosts or workers were lacking; stalled, no step though a round went on; booting; "
            "ending, after the last step.",
            "kind",
            self._seconds,
        )
        spent = ledger.time_spent(now)
        if spent.HasField("goodput"):
            yield _gauge(
                "goodput_ratio",
                "The share of the wall time so far that went into steps that count; absent before the first.",
                spent.goodput,
            )
        if ledger.last_step is not None:
            yield _gauge(
                "last_step_timestamp_seconds",
                "When the last step was made that is known of, in seconds since the epoch.",
                ledger.last_step,
            )
        yield _counter("commits", "Commits; one that four workers make counts four times.", tracker.commits.count)
        yield _counter(
            "commit_seconds",
            "Seconds that scripts waited for commits, of all workers together.",
            tracker.commits.seconds,
        )
        yield _counter("commit_bytes", "Bytes of tensors that were committed.", tracker.commits.nbytes)
        yield _gauge("steps_per_second", "Steps a second, over the last 10 s.", progress.step_rate if progress else 0.0)
        if progress is None:
            return
        if progress.HasField("epoch"):
            yield _gauge("epoch", "The ElasticSampler's epoch.", progress.epoch)
            yield _gauge("epoch_samples", "Samples of an epoch.", progress.samples)
            yield _gauge(
                "epoch_samples_done",
                "Samples of this epoch that all workers together have done.",
                progress.samples_done,
            )
            yield _gauge(
                "samples_per_second",
                "Samples a second of all workers together, over the last 10 s.",
                progress.sample_rate,
            )
        for name in sorted(progress.reported):
            if len(self._names) < MAX_REPORTED_NAMES and len(name) <= MAX_NAME_LENGTH:
                self._names.add(name)
        reported = {name: value for name, value in progress.reported.items() if name in self._names}
        yield _gauges("reported", "The value that rank 0 last gave to state.report under this name.", "name", reported)

    def _of_discovery(self) -> Iterator[Metric]:
        polls = self._polls
        results = {"answered": polls.answered, "failed": polls.failed}
        yield _counters(
            "discovery_polls",
            "Questions to discovery; an empty answer that is not believed yet has failed.",
            "result",
            results,
        )
        yield _gauge("discovery_last_poll_seconds", "How long the last question to discovery took.", polls.seconds)
        if polls.last_answer is not None:
            yield _gauge(
                "discovery_last_success_timestamp_seconds",
                "When the last answer that was believed came, in seconds since the epoch.",
                polls.last_answer,
            )


def _gauge(name: str, help_text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"edriver_{name}", help_text, value=value)


def _gauges(name: str, help_text: str, label: str, values: Mapping[str, float]) -> Metric:
    return _filled(GaugeMetricFamily(f"edriver_{name}", help_text, labels=[label]), values)


def _counter(name: str, help_text: str, value: float) -> Metric:
    return CounterMetricFamily(f"edriver_{name}", help_text, value=value)


def _counters(name: str, help_text: str, label: str, values: Mapping[str, float]) -> Metric:
    return _filled(CounterMetricFamily(f"edriver_{name}", help_text, labels=[label]), values)


def _filled(family: GaugeMetricFamily | CounterMetricFamily, values: Mapping[str, float]) -> Metric:
    for key, value in values.items():
        family.add_metric([key], value)
    return family
