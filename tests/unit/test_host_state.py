"""Where hosts stand, and how that is shown."""

from __future__ import annotations

import re
import time

import pytest

from edriver.client import Run
from edriver.commands.status import lines
from edriver.commands.top_screen import host_rows
from edriver.discovery.poll_filter import Polls
from edriver.driver.core.demand import demand_of
from edriver.driver.core.host_state import HostStanding, HostState, host_standing, host_standings
from edriver.driver.core.membership import Membership
from edriver.driver.observe.metrics.gauges import RunGauges
from edriver.driver.observe.snapshots import host_status
from edriver.driver.services.status import StatusServer
from edriver.model import events
from edriver.model.cause import AgentFault, AgentFaultKind, CauseKind, SpareSlots
from edriver.model.mode import Mode
from edriver.model.settings import Settings
from edriver.runview.history import History
from edriver.text.host_text import host_text, host_words
from edriver.v1 import status_pb2
from tests.unit.event_story import Story, connected

SILENT = AgentFault(AgentFaultKind.SILENT, seconds=12.0)


def standing(story: Story, host: str) -> HostStanding:
    """Both ways to ask give one answer."""
    state = story.membership
    found = host_standing(state, host)
    if found.state is not HostState.GONE:
        assert host_standings(state)[host] == found
    return found


def shown(story: Story, host: str, since: float = 0.0) -> str:
    state = story.membership
    record = state.roster.hosts.get(host)
    return host_words(host_status(host, record, standing(story, host), since, 0.0))


def kinds(found: HostStanding) -> list[CauseKind]:
    return [cause.kind for cause in found.reasons]


def test_a_host_starts_and_is_used() -> None:
    story = Story()
    story.hosts(a=2)
    assert standing(story, "a") == HostStanding(HostState.STARTING, 0, (), None)
    assert shown(story, "a") == "has not answered yet"
    story.take(events.AgentConnected("a", 1))
    assert standing(story, "a") == HostStanding(HostState.USED, 2, (), None)
    assert shown(story, "a") == "is used"


def test_slots_whose_positions_are_too_few_are_idle() -> None:
    """In elastic mode parts of a replica may lie on hosts of unequal sizes."""
    story = Story()
    story.membership = Membership(Settings(np=4, min_np=4, max_np=8, replica_size=4), now=0.0)
    story.hosts(a=5, c=2)
    story.take(events.AgentConnected("a", 1))
    story.take(events.AgentConnected("c", 2))
    assert shown(story, "a") == (
        "is used in 4 slots; has 1 slot idle: not enough for a replica of 4 workers (--replica-size)"
    )
    assert shown(story, "c") == "has 2 slots idle: a replica of 4 workers needs 1 more host of 2 slots"
    story.hosts(a=5, c=2, d=1)
    story.take(events.AgentConnected("d", 3))
    assert shown(story, "d") == "has 1 slot idle: a replica of 4 workers needs 1 more host of 1 slot"
    story.hosts(a=5, c=2, d=1, e=1)
    story.take(events.AgentConnected("e", 4))
    assert (shown(story, "c"), shown(story, "d"), shown(story, "e")) == ("is used", "is used", "is used")


def test_slots_that_make_up_no_replica_are_idle() -> None:
    story = Story(mode=Mode.RESTART)
    settings = Settings(np=4, min_np=4, max_np=12, mode=Mode.RESTART, replica_size=4)
    story.membership = Membership(settings, now=0.0)
    story.hosts(a=5, b=3, c=2)
    story.take(events.AgentConnected("a", 1))
    story.take(events.AgentConnected("c", 2))
    assert shown(story, "a") == (
        "is used in 4 slots; has 1 slot idle: not enough for a replica of 4 workers (--replica-size)"
    )
    assert shown(story, "b") == "has 3 slots idle: not enough for a replica of 4 workers (--replica-size)"
    assert shown(story, "c") == "has 2 slots idle: a replica of 4 workers needs 1 more host of 2 slots"
    story.hosts(a=5, b=3, c=2, d=2)
    story.take(events.AgentConnected("d", 3))
    assert (shown(story, "c"), shown(story, "d")) == ("is used", "is used")
    demand = demand_of(story.membership)
    assert (demand.slots, demand.unused) == (12, ())
    story.take(events.ResizeRequested(8))
    assert demand_of(story.membership).unused == ("b",), "it is given back to its cluster"


def test_slots_beyond_max_np_are_idle() -> None:
    story = connected(2, 2, 1)
    assert standing(story, "a").state is HostState.USED
    partly = standing(story, "b")
    assert (partly.state, partly.workers, kinds(partly)) == (HostState.PARTLY_USED, 1, [CauseKind.SLOTS_SPARE])
    assert partly.reasons[0].detail == SpareSlots(1, 3, resized=False)
    assert shown(story, "b") == "is used in 1 slot; has 1 slot idle: the run may use 3 workers (--max-np)"
    idle = standing(story, "c")
    assert (idle.state, idle.workers) == (HostState.IDLE, 0)
    assert shown(story, "c") == "has 1 slot idle: the run may use 3 workers (--max-np)"


def test_slots_beyond_a_resize_are_idle_by_it() -> None:
    story = Story(np=1)
    story.take(events.ResizeRequested(1))
    story.hosts(a=1, b=1)
    story.take(events.AgentConnected("a", 1))
    story.take(events.AgentConnected("b", 2))
    assert standing(story, "b").reasons[0].detail == SpareSlots(1, 1, resized=True)
    assert shown(story, "b") == "has 1 slot idle: the run may use 1 worker (edriver resize)"


def test_slots_that_are_about_to_be_used_are_not_spare() -> None:
    story = connected(2)
    story.take(events.WorkerExited(1, 1, "", 0.0))
    story.take(events.WorkerExited(3, 1, "", 0.0))
    found = standing(story, "a")
    assert (found.state, kinds(found)) == (HostState.PARTLY_USED, [CauseKind.SLOTS_COOLING])
    assert shown(story, "a") == "is used in 1 slot; has 1 slot cooling down after a failure"


def test_a_host_that_is_removed_is_left_and_gone() -> None:
    story = connected(1, 1)
    story.hosts(a=1)
    found = standing(story, "b")
    assert (found.state, kinds(found)) == (HostState.LEAVING, [CauseKind.HOST_REMOVED])
    assert shown(story, "b") == "is no longer named by discovery; still has 1 worker"  # it is told to end
    story.take(events.WorkerExited(2, 0, "", 0.0))
    assert standing(story, "b") == HostStanding(HostState.GONE, 0, (), None)
    assert shown(story, "b") == "is gone"


def test_a_host_is_drained() -> None:
    story = connected(1, 1)
    story.take(events.DrainRequested("b", None, "by hand"))
    assert standing(story, "b").state is HostState.LEAVING
    assert shown(story, "b") == "is drained: by hand; still has 1 worker"
    story.take(events.WorkerExited(2, 0, "", 0.0))
    assert standing(story, "b").state is HostState.DRAINED
    assert shown(story, "b") == "is drained: by hand"
    story.take(events.UndrainRequested("b", None))
    assert standing(story, "b").state is HostState.STARTING


def test_a_drained_slot_is_said() -> None:
    story = connected(2)
    story.take(events.DrainRequested("a", 1, "by hand"))
    story.take(events.WorkerExited(2, 0, "", 0.0))
    assert standing(story, "a").state is HostState.PARTLY_USED
    assert shown(story, "a") == "is used in 1 slot; has 1 slot drained"


def test_a_host_whose_agent_is_silent_is_unreachable() -> None:
    story = connected(1, 1)
    story.take(events.AgentSilent("b", 2, SILENT))
    assert standing(story, "b").state is HostState.UNREACHABLE
    assert shown(story, "b") == "is not used: its agent has not answered for 12 s"
    story.now += 60.0
    story.take(events.Ticked())  # another agent is started there
    assert standing(story, "b").state is HostState.UNREACHABLE
    story.take(events.AgentConnected("b", 3))
    assert standing(story, "b").state is HostState.USED
    story.take(events.AgentLost("b", 3, AgentFault(AgentFaultKind.ENDED, "its agent exited with code 1")))
    assert standing(story, "b").state is HostState.UNREACHABLE


def test_a_quarantine_says_when_it_is_over() -> None:
    story = connected(2, 1)
    state = story.membership
    state.placement.quarantine.exclude(state.roster.hosts["a"], state.now + 30.0)
    found = standing(story, "a")
    assert (found.state, found.workers, found.quarantined_until) == (HostState.QUARANTINED, 2, state.now + 30.0)
    message = host_status("a", state.roster.hosts["a"], found, 0.0, 1000.0)
    assert message.quarantine_end_time.ToSeconds() == 1000.0 + state.now + 30.0
    clock = time.strftime("%H:%M:%S", time.localtime(1030.0 + state.now))
    assert host_text(message) == f"is quarantined until {clock}; still has 2 workers"


@pytest.mark.parametrize("connected", [True, False])
def test_hosts_of_records_that_an_earlier_release_has_written_are_shown(connected: bool) -> None:
    message = status_pb2.HostStatus(name="a", slots=1, connected=connected)
    assert host_text(message) == ("is used" if connected else "has not answered yet")
    message.obstacles.add(text="is quarantined")
    assert host_text(message) == "is quarantined"


QUARANTINE = 3600.0


def in_every_state() -> Story:
    """A run of three workers with a host in each state but gone; what happens last to e, f and h tells theirs."""
    story = Story(np=1)
    story.hosts(c=1, e=1, f=1)
    for number, name in enumerate("cef", start=1):
        story.take(events.AgentConnected(name, number))
    story.hosts(c=1, e=1, f=1, a=1, b=2, d=1, g=1, h=1)
    for number, name in enumerate("abdh", start=4):
        story.take(events.AgentConnected(name, number))
    story.take(events.DrainRequested("c", None, "by hand"))  # its worker is still there, and a has another
    story.take(events.DrainRequested("h", None, "by hand"))
    story.take(events.AgentSilent("e", 2, SILENT))  # b has one for it
    state = story.membership
    state.placement.quarantine.exclude(state.roster.hosts["f"], state.now + QUARANTINE)
    return story


def test_a_hosts_state_is_the_same_in_every_place() -> None:
    story = in_every_state()
    capped = "has 1 slot idle: the run may use 3 workers (--max-np)"
    wanted = {
        "a": ("used", "is used"),
        "b": ("partly_used", f"is used in 1 slot; {capped}"),
        "c": ("leaving", "is drained: by hand; still has 1 worker"),
        "d": ("idle", capped),
        "e": ("unreachable", "is not used: its agent has not answered for 12 s"),
        "f": ("quarantined", "is quarantined; still has 1 worker"),
        "g": ("starting", "has not answered yet"),
        "h": ("drained", "is drained: by hand"),
    }
    server = StatusServer("abcd", story.membership, story.event_history, lambda: story.now)
    run = server.answer().run
    assert {host.name: state_name(host) for host in run.hosts} == {name: state for name, (state, _) in wanted.items()}
    texts = {name: text for name, (_, text) in wanted.items()}
    assert texts_of_status(run) == texts, "edriver status"
    assert {str(row[0]): without_time(str(row[4])) for row in host_rows(run)} == texts, "edriver top"

    page = History()
    for event in story.event_history.since(0, 1000):
        page.fold(event)
    by_events = {name: host_words(host) for name, host in page.hosts.items()}
    assert {name: by_events[name] for name in "ceh"} == {name: texts[name] for name in "ceh"}, "events"
    page.look(run, story.event_history.last_seq)
    assert {host["name"]: host["text"] for host in page.since(0)["hosts"]} == texts, "the page"

    gauges = RunGauges("abcd", story.membership, story.event_history, Polls())
    (hosts,) = [family for family in gauges.collect() if family.name == "edriver_hosts"]
    assert {sample.labels["state"]: sample.value for sample in hosts.samples} == {
        state: 1.0 for state, _ in wanted.values()
    }, "metrics"


def state_name(host: status_pb2.HostStatus) -> str:
    return status_pb2.HostState.Name(host.state).removeprefix("HOST_STATE_").lower()


def without_time(text: str) -> str:
    """The page has the end of a quarantine in a field of its own."""
    return re.sub(r" until [0-9:]+", "", text)


def texts_of_status(run: Run) -> dict[str, str]:
    found = (re.fullmatch(r"host (\w) \(\d slots?\) (.*)", line) for line in lines(run))
    return {match[1]: without_time(match[2]) for match in found if match is not None}
