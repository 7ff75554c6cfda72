"""What a drain would do, and how that is said."""

from __future__ import annotations

import math

import pytest

from edriver.driver.core.drain_preview import DrainOutcome, preview_drain
from edriver.driver.core.membership import Membership
from edriver.model import actions, events
from edriver.model.hosts import Host, HostSet
from edriver.model.ids import NO_VERSION
from edriver.model.mode import Mode
from edriver.model.settings import WHOLE_HOSTS, Settings
from edriver.model.store_address import StoreAddress
from edriver.text.steering_text import drain_preview_text
from edriver.v1 import control_pb2
from edriver.wire.conversion import duration

BOOT = 20.0


def training(
    hosts: dict[str, int],
    later: dict[str, int],
    min_np: int,
    replica_size: int = 1,
    mode: Mode | None = None,
) -> Membership:
    """A run of as many workers as `hosts` have slots, each of which took BOOT to boot; then other hosts come, too."""
    size = sum(hosts.values())
    if mode is None:
        mode = Mode.ELASTIC if replica_size == 1 else Mode.RESTART
    settings = Settings(np=size, min_np=min_np, max_np=size, mode=mode, replica_size=replica_size)
    run = Membership(settings, now=0.0)
    boots = list[int]()

    def observe(found: dict[str, int], now: float) -> None:
        orders = run.step(events.HostsObserved(HostSet(tuple(Host(name, n) for name, n in found.items()))), now)
        while orders:
            match orders.pop(0):
                case actions.StartAgent(host, agent_id):
                    orders += run.step(events.AgentConnected(host, agent_id), now)
                case actions.StartWorker(worker_id):
                    boots.append(worker_id)

    observe(hosts, 0.0)
    for worker_id in boots:
        store = StoreAddress("a", 7000 + worker_id)
        run.step(events.WorkerWaiting(worker_id, 1, NO_VERSION, store, ""), BOOT)
    observe({**hosts, **later}, BOOT + 1)
    return run


@pytest.mark.parametrize(
    ("hosts", "later", "min_np", "drained", "within", "outcome", "left", "pause"),
    [
        pytest.param({"a": 2, "b": 2}, {"c": 2}, 2, "b", 120, DrainOutcome.MOVES, 4, 0.0, id="room-and-time"),
        pytest.param({"a": 2, "b": 2}, {}, 2, "b", 120, DrainOutcome.SHRINKS, 2, 0.0, id="no-room"),
        pytest.param({"a": 2, "b": 2}, {"c": 1}, 2, "b", 120, DrainOutcome.SHRINKS, 3, 0.0, id="room-for-some"),
        pytest.param({"a": 2, "b": 2}, {"c": 2}, 2, "b", 10, DrainOutcome.SHRINKS, 2, 0.0, id="too-little-time"),
        pytest.param({"a": 2, "b": 2}, {"c": 2}, 3, "b", 10, DrainOutcome.PAUSES, 2, BOOT - 5, id="below-min-np"),
        pytest.param({"a": 2, "b": 2}, {"c": 2}, 3, "b", 0, DrainOutcome.PAUSES, 2, BOOT, id="at-once"),
        pytest.param({"a": 2, "b": 2}, {"c": 2}, 2, "c", 120, DrainOutcome.UNUSED, 4, 0.0, id="a-spare-host"),
    ],
)
def test_what_a_drain_would_do(
    hosts: dict[str, int],
    later: dict[str, int],
    min_np: int,
    drained: str,
    within: float,
    outcome: DrainOutcome,
    left: int,
    pause: float,
) -> None:
    run = training(hosts, later, min_np)
    found = preview_drain(run, run.roster.hosts[drained], None, within)
    assert (found.outcome, found.left, found.pause, found.boot) == (outcome, left, pause, BOOT)


@pytest.mark.parametrize(
    ("size", "later", "drained", "slot", "outcome", "leaving", "replaced", "left"),
    [
        pytest.param(2, {}, "b", 0, DrainOutcome.SHRINKS, 2, 0, 6, id="a-slot-with-its-replica"),
        pytest.param(2, {"e": 2}, "b", 0, DrainOutcome.MOVES, 2, 2, 8, id="to-another-host"),
        pytest.param(2, {"e": 1}, "b", 0, DrainOutcome.SHRINKS, 2, 0, 6, id="half-a-replica-is-free"),
        pytest.param(4, {}, "b", None, DrainOutcome.SHRINKS, 4, 0, 4, id="a-host-with-the-other-one"),
        pytest.param(4, {"e": 2}, "b", None, DrainOutcome.MOVES, 4, 4, 8, id="another-host-in-its-place"),
        pytest.param(8, {}, "b", None, DrainOutcome.PAUSES, 8, 0, 0, id="all"),
        pytest.param(WHOLE_HOSTS, {}, "b", 0, DrainOutcome.SHRINKS, 2, 0, 6, id="a-whole-host"),
    ],
)
def test_what_a_drain_would_do_to_replicas(
    size: int,
    later: dict[str, int],
    drained: str,
    slot: int | None,
    outcome: DrainOutcome,
    leaving: int,
    replaced: int,
    left: int,
) -> None:
    run = training({"a": 2, "b": 2, "c": 2, "d": 2}, later, max(2, size), size)
    found = preview_drain(run, run.roster.hosts[drained], slot, 120)
    assert (found.outcome, found.leaving, found.replaced, found.left) == (outcome, leaving, replaced, left)


@pytest.mark.parametrize(
    ("hosts", "later", "drained", "slot", "outcome", "leaving", "replaced", "left"),
    [
        pytest.param({"a": 2, "b": 2}, {}, "b", 0, DrainOutcome.SHRINKS, 2, 0, 2, id="a-slot-with-its-replica"),
        pytest.param({"a": 2, "b": 2}, {"c": 1}, "b", 0, DrainOutcome.MOVES, 2, 2, 4, id="half-a-replica-is-enough"),
        pytest.param({"a": 2, "b": 2}, {"c": 1}, "b", None, DrainOutcome.SHRINKS, 2, 0, 2, id="half-a-replica-is-not"),
        pytest.param({"a": 2, "b": 2}, {"c": 2}, "b", None, DrainOutcome.MOVES, 2, 2, 4, id="to-another-host"),
        pytest.param({"a": 1, "b": 1}, {"c": 1}, "b", None, DrainOutcome.MOVES, 2, 2, 2, id="a-part-on-each-host"),
        pytest.param({"a": 1, "b": 1}, {}, "b", None, DrainOutcome.PAUSES, 2, 0, 0, id="the-only-replica"),
    ],
)
def test_what_a_drain_would_do_to_replicas_by_position(
    hosts: dict[str, int],
    later: dict[str, int],
    drained: str,
    slot: int | None,
    outcome: DrainOutcome,
    leaving: int,
    replaced: int,
    left: int,
) -> None:
    run = training(hosts, later, 2, 2, Mode.ELASTIC)
    found = preview_drain(run, run.roster.hosts[drained], slot, 120)
    assert (found.outcome, found.leaving, found.replaced, found.left) == (outcome, leaving, replaced, left)


def test_a_slot_has_another_one_of_its_host_to_move_to() -> None:
    run = training({"a": 2}, {"a": 3}, 2)
    assert preview_drain(run, run.roster.hosts["a"], 0, math.inf).outcome is DrainOutcome.MOVES


@pytest.mark.parametrize(
    ("preview", "text"),
    [
        pytest.param(
            {"outcome": control_pb2.DRAIN_OUTCOME_MOVES, "leaving": 2, "replaced": 2, "boot": duration(21.2)},
            "2 workers train on there until 2 others are ready; a boot takes about 21 s; then they change places at "
            "one step, without a pause for the boot",
            id="moves",
        ),
        pytest.param(
            {"outcome": control_pb2.DRAIN_OUTCOME_MOVES, "leaving": 1, "replaced": 1, "restarts": True},
            "1 worker trains on there until another is ready; then they change places at one step, without a pause for "
            "the boot; all processes start anew, from the script's last checkpoint",
            id="restarts",
        ),
        pytest.param(
            {"outcome": control_pb2.DRAIN_OUTCOME_SHRINKS, "leaving": 2, "left": 2},
            "2 workers leave, 2 workers train on without a pause: no free slot elsewhere",
            id="no-room",
        ),
        pytest.param(
            {"outcome": control_pb2.DRAIN_OUTCOME_SHRINKS, "leaving": 2, "replaced": 1, "left": 3},
            "2 workers leave, 3 workers train on without a pause: only 1 free slot elsewhere",
            id="room-for-some",
        ),
        pytest.param(
            {
                "outcome": control_pb2.DRAIN_OUTCOME_SHRINKS,
                "leaving": 1,
                "replaced": 1,
                "left": 3,
                "boot": duration(90),
            },
            "1 worker leaves, 3 workers train on without a pause: too little time for a boot, which takes about 1 min "
            "30 s",
            id="no-time",
        ),
        pytest.param(
            {"outcome": control_pb2.DRAIN_OUTCOME_PAUSES, "leaving": 2, "left": 1, "pause": duration(15)},
            "training pauses for about 15 s: 1 worker left, fewer than --min-np, until replacements have booted",
            id="pauses",
        ),
        pytest.param({"outcome": control_pb2.DRAIN_OUTCOME_UNUSED}, "no worker trains there", id="unused"),
    ],
)
def test_what_is_said_of_it(preview: dict[str, object], text: str) -> None:
    assert drain_preview_text(control_pb2.PreviewDrainResponse(**preview)) == text  # type: ignore[arg-type]
