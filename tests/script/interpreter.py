"""Runs a case's commands against a real core.

One command a line:

    run np=2 min-np=1 max-np=4 [elastic-timeout=600 ...]   a new run, at 0 s; keys are the fields of Settings
    begin a:2 b:1                    all that happens up to the first round, of which only the round is shown
    hosts [a:2 b:1]                  HostsObserved
    unanswered: WHY                  DiscoveryFailed
    connected HOST [agent=N]         AgentConnected; by default of the agent that was started there last
    lost HOST [agent=N]: WHY         AgentLost
    silent HOST                      AgentSilent, for 5 s
    holds HOST [1.1:10/0of2 ...] [1.1:10/1of2copy ...] [disk=N:NAME[:written|:sealed]] [: WHY]    CheckpointsHeld: of
                                     round 1.1 and step 10 rank 0's of two shards, and rank 1's as a copy; `0of2disk`
                                     belongs on disk, `0of2due` is due there. How far the Nth write to disk is, or WHY
                                     it has failed
    forgotten HOST                   CheckpointServerEnded
    waiting W ... [version=R:B] [sealed=R:B] [norm=N] [ordinal=N] [digest=TEXT] [lost=N] [torn=WHY] [checkpoint=N]
            [left=FILE:LINE] [shards=1.1/4:0,2[+...]]
                                     WorkerWaiting, one event for each worker; it holds those shards of the four of
                                     round 1.1, and ...
    boundary W ... at B [round=R] [number=N] [way=call]     BoundaryReached; by default of the running interrupt
    saved W ... [round=R]            CheckpointSaved
    stepped W ... [round=R] [digest=TEXT]    FirstBoundaryPassed
    digest W ... at B [round=R]: TEXT    StateDigest
    done W ... at B [round=R]        WorkerDone
    raised W [round=R]: TRACEBACK    CollectiveRaised
    unproven W [round=R]: REASON     PeerUnproven
    failed W [rejoins]: TRACEBACK    WorkerFailed
    ending W ...                     WorkerEnding
    exited W ... with CODE [step=N] [differs=FILE:LINE][: TAIL]    WorkerExited; ranks called different collectives, it
                                     one there
    expired W ... [halt=stopped]     LeaseExpired
    loaded W: DIGEST                 SourcesLoaded: script.py with this digest
    warned W of no-boundary after N [round=R]    ScriptWarned: it has made N steps without a boundary
    warned W of nan                  ScriptWarned: a value that it reports is NaN
    quiet W ...                      WorkerQuiet
    answered W ...                   WorkerAnswered
    stuck W [round=R]                WorkerStuck
    overdue W                        ExitOverdue
    stalled W in PHASE [round=R]: STACKS    WorkerStalled, after STALL seconds
    idle W [round=R] [for=10]        WorkerIdle, after so many seconds; for=0: it goes on
    blocked W ... at B [round=R] [for=3]    WorkerBlocked, after so many seconds; for=0: they go on
    drain HOST [slot=N] [within=SECONDS] [notice=yes] [by=WHO]: REASON    DrainRequested
    flush                            CheckpointRequested
    written W number=N               CheckpointWritten
    undrain HOST [slot=N]            UndrainRequested
    resize N [by=WHO]                ResizeRequested
    resumed N                        DriverResumed: it is number N
    stop: REASON                     StopRequested
    unusable: WHY                    SourceUnusable
    advance SECONDS                  time passes; Ticked at each deadline that the core names, and at no other time,
                                     so that a deadline that it forgets shows as an action that does not come
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator

from edriver.driver.core.membership import Membership
from edriver.model import actions, events
from edriver.model.cause import AgentFault, AgentFaultKind, CauseKind, Halt, NoBoundary, NotFinite
from edriver.model.hosts import Host, HostSet
from edriver.model.ids import NO_VERSION, RoundId, Version
from edriver.model.memory_checkpoint import CheckpointId, DiskReport, DiskTarget, Shard
from edriver.model.mode import CheckpointWay, Mode, OnLoss
from edriver.model.plan import RoundPlan
from edriver.model.script_error import ScriptError
from edriver.model.settings import WHOLE_HOSTS, Settings
from edriver.model.shards import HeldShards, Sharding
from edriver.model.store_address import StoreAddress
from tests.script.case import format_case, parse_case
from tests.script.rendering import render

LEASE = 10.0
STALL = 600.0
"""The stall of which `stalled` speaks, in seconds."""

OVERDUE = 600.0
"""The lease of which `expired` speaks, in seconds."""

COMMAND = re.compile(r"(?P<verb>[a-z]+)(?P<words>[^:]*(?::\S[^:]*)*)(?:: (?P<text>.*))?")
"""A verb, words (in which a colon stands within a word: `a:2`), and a text after a colon and a space."""


HELD = re.compile(r"(?P<round>[0-9.]+):(?P<step>\d+)/(?P<rank>\d+)of(?P<size>\d+)(?P<disk>due|disk)?(?P<copy>copy)?")
"""A shard that a host holds."""


class Words:
    """What stands after a command's verb: names and numbers, `key=value` pairs, and a text after a colon."""

    def __init__(self, words: str, text: str | None) -> None:
        split = words.split()
        self.names = [word for word in split if "=" not in word]
        self.pairs = dict(word.split("=", 1) for word in split if "=" in word)
        self.text = text or ""

    def numbers_and(self, preposition: str) -> tuple[list[int], int]:
        """The numbers before a preposition, and the one after it."""
        where = self.names.index(preposition)
        (after,) = self.names[where + 1 :]
        return [int(name) for name in self.names[:where]], int(after)


def _place(text: str) -> ScriptError:
    """`train.py:14`."""
    file, line = text.split(":")
    return ScriptError("", file, int(line), "train")


def parse_round_id(text: str) -> RoundId:
    """`1.2`."""
    incarnation, n = text.split(".")
    return RoundId(int(incarnation), int(n))


def _held_shards(text: str) -> HeldShards:
    sharding, positions = text.split(":")
    round_id, size = sharding.split("/")
    incarnation, number = round_id.split(".")
    shards = tuple(map(int, positions.split(",")))
    return HeldShards(Sharding(RoundId(int(incarnation), int(number)), int(size)), shards)


def parse_version(text: str) -> Version:
    """`1.2:30`, or `none`."""
    if text == "none":
        return NO_VERSION
    round_id, boundaries = text.split(":")
    return Version(parse_round_id(round_id), int(boundaries))


def parse_hosts(names: list[str]) -> HostSet:
    """`a:2 b:1`."""
    pairs = [name.split(":") for name in names]
    return HostSet(tuple(Host(name, int(slots)) for name, slots in pairs))


class Interpreter:
    """One case's run.

    Attributes:
        shown: the actions that have been ordered, by type: a case may be asked what it covers.
        received: the events that have been fed.
    """

    def __init__(self) -> None:
        self.shown: set[type[actions.Action]] = set()
        self.received: set[type[events.Event]] = set()
        self._core = Membership(Settings(np=1, min_np=1, max_np=1), now=0.0)
        self._now = 0.0
        self._agents: dict[str, int] = {}
        self._hosts_of: dict[int, str] = {}

    def perform(self, command: str) -> list[str]:
        """Run one command; returns the actions that it leads to, as text.

        Raises:
            ValueError: there is no such command.
        """
        found = COMMAND.fullmatch(command)
        if found is None or found["verb"] not in self._verbs():
            raise ValueError(f"no command: {command!r}; see the text of tests/script/interpreter.py")
        return list(self._verbs()[found["verb"]](Words(found["words"], found["text"])))

    def _verbs(self) -> dict[str, Callable[[Words], Iterator[str]]]:
        methods = inspect.getmembers(self, inspect.ismethod)
        return {name.removeprefix("_do_"): method for name, method in methods if name.startswith("_do_")}

    def _feed(self, event: events.Event) -> list[actions.Action]:
        self.received.add(type(event))
        ordered = self._core.step(event, self._now)
        for action in ordered:
            self.shown.add(type(action))
            match action:
                case actions.StartAgent(host, agent_id):
                    self._agents[host] = agent_id
                case actions.StartWorker(worker_id, host, _):
                    self._hosts_of[worker_id] = host
        return ordered

    def _tell(self, *reported: events.Event) -> Iterator[str]:
        for event in reported:
            for action in self._feed(event):
                yield from render(action)

    # ---- the run ----------------------------------------------------------------------------------------------

    def _do_run(self, words: Words) -> Iterator[str]:
        fields: dict[str, int | float | tuple[float, float] | Mode | OnLoss] = {
            "newcomer_delay": 0.0
        }  # but for the stories about it
        for key, value in words.pairs.items():
            name = key.replace("-", "_")
            if name in ("np", "min_np", "max_np") or name.endswith("_limit"):
                fields[name] = int(value)
            elif name == "replica_size":
                fields[name] = WHOLE_HOSTS if value == "host" else int(value)
            elif name == "one_replica":
                fields[name] = value == "yes"
            elif name == "on_loss":
                fields[name] = OnLoss(value)
            elif name == "mode":
                fields[name] = Mode(value)
            elif name == "cooldown_range":
                low, high = value.split(",")
                fields[name] = (float(low), float(high))
            else:
                fields[name] = float(value)
        self._core = Membership(Settings(**fields), now=0.0)  # type: ignore[arg-type]  # Settings checks them
        yield from ()

    def _do_begin(self, words: Words) -> Iterator[str]:
        orders = self._feed(events.HostsObserved(parse_hosts(words.names)))
        while orders:
            match orders.pop(0):
                case actions.StartAgent(host, agent_id):
                    orders += self._feed(events.AgentConnected(host, agent_id))
                case actions.StartWorker(worker_id):
                    orders += self._feed(self._waiting(worker_id, Words("", None)))
                case RoundPlan() as plan:
                    yield from render(plan)

    def _do_advance(self, words: Words) -> Iterator[str]:
        (seconds,) = words.names
        end = self._now + float(seconds)
        while (due := self._core.next_deadline) is not None and due <= end:
            self._now = due
            for line in self._tell(events.Ticked()):
                yield line if line.startswith(" ") else f"at {due:g} s: {line}"
        self._now = end

    def _do_stop(self, words: Words) -> Iterator[str]:
        return self._tell(events.StopRequested(words.text))

    def _do_unusable(self, words: Words) -> Iterator[str]:
        return self._tell(events.SourceUnusable(words.text))

    # ---- hosts ------------------------------------------------------------------------------------------------

    def _do_hosts(self, words: Words) -> Iterator[str]:
        return self._tell(events.HostsObserved(parse_hosts(words.names)))

    def _do_unanswered(self, words: Words) -> Iterator[str]:
        return self._tell(events.DiscoveryFailed(words.text))

    def _do_connected(self, words: Words) -> Iterator[str]:
        (host,) = words.names
        return self._tell(events.AgentConnected(host, int(words.pairs.get("agent", self._agents[host]))))

    def _do_lost(self, words: Words) -> Iterator[str]:
        (host,) = words.names
        return self._tell(
            events.AgentLost(
                host, int(words.pairs.get("agent", self._agents[host])), AgentFault(AgentFaultKind.ENDED, words.text)
            )
        )

    def _do_silent(self, words: Words) -> Iterator[str]:
        (host,) = words.names
        return self._tell(events.AgentSilent(host, self._agents[host], AgentFault(AgentFaultKind.SILENT, seconds=5.0)))

    def _do_drain(self, words: Words) -> Iterator[str]:
        (host,) = words.names
        slot, within = words.pairs.get("slot"), float(words.pairs.get("within", 0))
        requester, notice = words.pairs.get("by", ""), words.pairs.get("notice") == "yes"
        where = None if slot is None else int(slot)
        return self._tell(events.DrainRequested(host, where, words.text, requester, within, notice))

    def _do_undrain(self, words: Words) -> Iterator[str]:
        (host,) = words.names
        slot = words.pairs.get("slot")
        return self._tell(events.UndrainRequested(host, None if slot is None else int(slot)))

    def _do_resumed(self, words: Words) -> Iterator[str]:
        (number,) = words.names
        return self._tell(events.DriverResumed(int(number)))

    def _do_resize(self, words: Words) -> Iterator[str]:
        (size,) = words.names
        return self._tell(events.ResizeRequested(int(size), words.pairs.get("by", "")))

    # ---- workers ----------------------------------------------------------------------------------------------

    def _do_waiting(self, words: Words) -> Iterator[str]:
        for name in words.names:
            yield from self._tell(self._waiting(int(name), words))

    def _waiting(self, worker_id: int, words: Words) -> events.WorkerWaiting:
        return events.WorkerWaiting(
            worker_id=worker_id,
            ordinal=int(words.pairs.get("ordinal", 1)),
            version=parse_version(words.pairs.get("version", "none")),
            store=StoreAddress(self._hosts_of.get(worker_id, "nowhere"), 7000 + worker_id),
            digest=words.pairs.get("digest", ""),
            steps_lost=int(words.pairs.get("lost", 0)),
            torn=words.pairs.get("torn", ""),
            checkpoint=int(words.pairs["checkpoint"]) if "checkpoint" in words.pairs else None,
            left_at=_place(words.pairs["left"]) if "left" in words.pairs else None,
            sealed=parse_version(words.pairs["sealed"]) if "sealed" in words.pairs else None,
            gradient_norm=float(words.pairs["norm"]) if "norm" in words.pairs else None,
            shards=tuple(map(_held_shards, words.pairs["shards"].split("+"))) if "shards" in words.pairs else (),
        )

    def _do_boundary(self, words: Words) -> Iterator[str]:
        workers, boundaries = words.numbers_and("at")
        for worker_id in workers:
            number = int(words.pairs.get("number", self._interrupt()))
            way = CheckpointWay(words.pairs.get("way", "none"))
            yield from self._tell(events.BoundaryReached(worker_id, self._round_id(words), number, boundaries, way))

    def _do_saved(self, words: Words) -> Iterator[str]:
        for name in words.names:
            yield from self._tell(events.CheckpointSaved(int(name), self._round_id(words)))

    def _do_stepped(self, words: Words) -> Iterator[str]:
        for name in words.names:
            yield from self._tell(
                events.FirstBoundaryPassed(int(name), self._round_id(words), {}, words.pairs.get("digest", ""))
            )

    def _do_digest(self, words: Words) -> Iterator[str]:
        workers, boundaries = words.numbers_and("at")
        for worker_id in workers:
            yield from self._tell(events.StateDigest(worker_id, self._round_id(words), boundaries, words.text))

    def _do_done(self, words: Words) -> Iterator[str]:
        workers, boundaries = words.numbers_and("at")
        for worker_id in workers:
            yield from self._tell(events.WorkerDone(worker_id, self._round_id(words), boundaries))

    def _do_flush(self, words: Words) -> Iterator[str]:
        del words
        return self._tell(events.CheckpointRequested())

    def _do_written(self, words: Words) -> Iterator[str]:
        (name,) = words.names
        return self._tell(events.CheckpointWritten(int(name), int(words.pairs["number"])))

    def _do_holds(self, words: Words) -> Iterator[str]:
        host, *held = words.names
        shards = []
        for word in held:
            found = HELD.fullmatch(word)
            assert found is not None, word
            checkpoint = CheckpointId(parse_round_id(found["round"]), int(found["step"]), int(found["size"]))
            disk = DiskTarget("/shared", 3, "python", found["disk"] == "due") if found["disk"] else None
            shards.append(Shard(checkpoint, int(found["rank"]), b"", 100, copy=bool(found["copy"]), disk=disk))
        report = None
        if "disk" in words.pairs:
            number, name, *done = words.pairs["disk"].split(":")
            report = DiskReport(int(number), name, bool(done), "sealed" in done, words.text)
        return self._tell(events.CheckpointsHeld(host, self._agents[host], f"{host}:1", tuple(shards), disk=report))

    def _do_forgotten(self, words: Words) -> Iterator[str]:
        (host,) = words.names
        return self._tell(events.CheckpointServerEnded(host, self._agents[host]))

    def _do_raised(self, words: Words) -> Iterator[str]:
        (name,) = words.names
        return self._tell(events.CollectiveRaised(int(name), self._round_id(words), words.text))

    def _do_unproven(self, words: Words) -> Iterator[str]:
        (name,) = words.names
        return self._tell(events.PeerUnproven(int(name), self._round_id(words), words.text))

    def _do_failed(self, words: Words) -> Iterator[str]:
        name, *rejoins = words.names
        return self._tell(events.WorkerFailed(int(name), words.text, rejoins == ["rejoins"]))

    def _do_ending(self, words: Words) -> Iterator[str]:
        for name in words.names:
            yield from self._tell(events.WorkerEnding(int(name)))

    def _do_exited(self, words: Words) -> Iterator[str]:
        workers, code = words.numbers_and("with")
        differs = "differs" in words.pairs
        for worker_id in workers:
            reason = events.ExitReason(CauseKind.COLLECTIVES_DIFFER) if differs else None
            place = _place(words.pairs["differs"]) if differs else None
            step = int(words.pairs.get("step", "0"))
            exited = events.WorkerExited(worker_id, code, words.text, reason=reason, place=place, step=step)
            yield from self._tell(exited)

    def _do_expired(self, words: Words) -> Iterator[str]:
        halt = Halt(words.pairs["halt"]) if "halt" in words.pairs else None
        for name in words.names:
            yield from self._tell(events.LeaseExpired(int(name), LEASE, halt))

    def _do_loaded(self, words: Words) -> Iterator[str]:
        (name,) = words.names
        return self._tell(events.SourcesLoaded(int(name), (events.SourceFile("script.py", words.text.encode(), 0.0),)))

    def _do_warned(self, words: Words) -> Iterator[str]:
        warning: NoBoundary | NotFinite
        match words.names:
            case [name, "of", "no-boundary", "after", steps]:
                warning = NoBoundary(int(steps), "script.py:1 (train)")
            case [name, "of", "nan"]:
                warning = NotFinite("loss", "nan", "script.py:1 (train)")
            case _:
                raise ValueError(f"no such warning: {words.names}")
        return self._tell(events.ScriptWarned(int(name), self._round_id(words), 0, warning))

    def _do_quiet(self, words: Words) -> Iterator[str]:
        for name in words.names:
            yield from self._tell(events.WorkerQuiet(int(name)))

    def _do_answered(self, words: Words) -> Iterator[str]:
        for name in words.names:
            yield from self._tell(events.WorkerAnswered(int(name)))

    def _do_stuck(self, words: Words) -> Iterator[str]:
        (name,) = words.names
        return self._tell(events.WorkerStuck(int(name), self._round_id(words)))

    def _do_overdue(self, words: Words) -> Iterator[str]:
        (name,) = words.names
        return self._tell(events.ExitOverdue(int(name), OVERDUE))

    def _do_stalled(self, words: Words) -> Iterator[str]:
        name, _, phase = words.names
        return self._tell(events.WorkerStalled(int(name), self._round_id(words), phase, STALL, words.text))

    def _do_idle(self, words: Words) -> Iterator[str]:
        (name,) = words.names
        return self._tell(events.WorkerIdle(int(name), self._round_id(words), float(words.pairs.get("for", 10))))

    def _do_blocked(self, words: Words) -> Iterator[str]:
        workers, boundaries = words.numbers_and("at")
        seconds = float(words.pairs.get("for", 3))
        for worker_id in workers:
            yield from self._tell(events.WorkerBlocked(worker_id, self._round_id(words), boundaries, seconds))

    def _round_id(self, words: Words) -> RoundId:
        if "round" in words.pairs:
            return parse_round_id(words.pairs["round"])
        assert self._core.round is not None, "no round has begun"
        return self._core.round.plan.round_id

    def _interrupt(self) -> int:
        """The number of the last interrupt of the round."""
        assert self._core.round is not None, "no round has begun"
        return self._core.round.interrupts


def rewritten(text: str) -> str:
    """A case with the actions that the core orders now."""
    interpreter = Interpreter()
    blocks = []
    for block in parse_case(text):
        answer = [line for command in block.commands for line in interpreter.perform(command)]
        blocks.append(block.answered(answer))
    return format_case(blocks)
