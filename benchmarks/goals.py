"""What edriver must reach, and whether it does. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.figures import RATIO, Figures, Key, Unit, unit_of


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound for the median of a figure, or for the ratio of two.

    Attributes:
        what: in words.
        of: the figure.
        most: the most that it may be,
        least: and the least; one of the two is given.
        over: the figure that it is divided by; None: it stands for itself.
    """

    what: str
    of: Key
    most: float | None = None
    least: float | None = None
    over: Key | None = None

    @property
    def unit(self) -> Unit:
        """How the measured value and the bound are written."""
        return RATIO if self.over else unit_of(self.of.name)

    @property
    def bound(self) -> str:
        """The bound, written."""
        if self.most is not None:
            return f"at most {self.unit(self.most)}"
        assert self.least is not None
        return f"at least {self.unit(self.least)}"


@dataclass(frozen=True, slots=True)
class Judgement:
    """What became of a goal.

    Attributes:
        goal: the goal.
        value: the median, or the ratio of the medians; None: it was not measured.
        connected: whether the goal is met; what was not measured is not.
    """

    goal: Goal
    value: float | None
    connected: bool


def judge(goal: Goal, figures: Figures) -> Judgement:
    """Compare a goal with what was measured."""
    value = figures.median(goal.of)
    if goal.over is not None:
        below = figures.median(goal.over)
        value = value / below if value is not None and below else None
    if value is None:
        return Judgement(goal, None, connected=False)
    connected = (goal.most is None or value <= goal.most) and (goal.least is None or value >= goal.least)
    return Judgement(goal, value, connected)


LOSSES = ("steps lost", "samples lost", "samples repeated")
"""What no recovery may cost."""


def _kill(part: str) -> list[Goal]:
    ours = Key(part, "edriver", "downtime")

    def under(system: str) -> Key:
        return Key(part, system, "downtime")

    return [
        Goal(f"{part}: kill to the next finished step", ours, most=0.090),
        Goal(f"{part}: the same, against the bare floor", ours, most=1.5, over=under("bare")),
        Goal(f"{part}: torchft's against edriver's", under("torchft"), least=5, over=ours),
        Goal(f"{part}: torchrun's against edriver's", under("torchrun"), least=40, over=ours),
        Goal(f"{part}: steps lost, no commit ever called", Key(part, "edriver", "steps lost"), most=0),
        *_whole(part),
    ]


def _restarts(part: str, name: str) -> list[Goal]:
    return [
        Goal(
            f"{part}: {name} of torchrun's script under torchrun, against restart mode",
            Key(part, "torchrun", name),
            least=5,
            over=Key(part, "restart mode", name),
        ),
        Goal(f"{part}: samples lost in restart mode", Key(part, "restart mode", "samples lost"), most=0),
    ]


def _whole(part: str) -> list[Goal]:
    return [
        Goal(f"{part}: {name}", Key(part, "edriver", name), most=0) for name in ("samples lost", "samples repeated")
    ]


def _ours(part: str, name: str) -> Key:
    return Key(part, "edriver", name)


def _on_ray() -> list[Goal]:
    def of(name: str, system: str = "edriver on Ray") -> Key:
        return Key("RAY", system, name)

    killed = "a worker killed"
    return [
        Goal("RAY: kill to the next step, against edriver without Ray", of(killed), 1.3, over=of(killed, "edriver")),
        Goal("RAY: Ray Train's against edriver's", of(killed, "Ray Train"), least=20, over=of(killed)),
        Goal("RAY: a node killed, to the next step", of("a node killed"), most=5.3),
        Goal("RAY: pause when a node is added", of("a node added: pause"), most=0.100),
        *(Goal(f"RAY: {name}", of(name), most=0) for name in ("steps lost", "samples lost", "samples repeated")),
    ]


def _journal() -> list[Goal]:
    quantities = (
        *((part, name) for part in ("K1", "K0") for name in ("downtime", "launch to the first step")),
        *((part, "longest pause") for part in ("UP", "DOWN")),
        ("STOP", "after the lease"),
        *(("QUIET", f"{what} of {whose}") for what in ("memory", "processor") for whose in ("the driver", "an agent")),
        ("QUIET", "first line"),
    )
    return [
        Goal(
            f"{part}: {name}, against a run without a journal",
            _ours(part, name),
            1.25,  # medians of pauses of 60 ms differ by as much from noise
            over=Key(part, "no journal", name),
        )
        for part, name in quantities
    ]


def _driver() -> list[Goal]:
    most = {
        "resume to in charge: all agents attached": 1.0,
        "worker killed meanwhile: all agents attached to the survivors' next step": 0.150,
        "standby: kill to in charge": 6.0,
        "all workers killed: that beyond a launch": 2.0,
    }
    alone = "steps a second without a driver, by with one"
    return [
        Goal(f"DRIVER: {alone}", _ours("DRIVER", alone), least=0.98),
        *(Goal(f"DRIVER: {name}", _ours("DRIVER", name), most=bound) for name, bound in most.items()),
    ]


def _sharded() -> list[Goal]:
    def of(part: str, name: str, system: str = "edriver") -> Key:
        return Key(f"HSDP {part}", system, name)

    goals = []
    for part in ("K1", "K0"):
        ours = of(part, "downtime")
        goals += [
            Goal(
                f"HSDP {part}: kill to the next finished step, against DDP's",
                ours,
                1.5,
                over=of(part, ours.name, "DDP"),
            ),
            Goal(f"HSDP {part}: torchft's against edriver's", of(part, ours.name, "torchft"), least=4, over=ours),
            *(Goal(f"HSDP {part}: {name}", of(part, name), most=0) for name in LOSSES),
        ]
    alone = of("SPEED", "ratio to bare")
    other = of("BITS", "ranks with other bits than undisturbed")
    return [
        *goals,
        Goal(
            "HSDP UP: pause beyond a step, against a shard's transfer over one link + 60 ms",
            of("UP", "pause beyond a step"),
            most=1.3,
            over=of("SEAL", "shard over one link, + 60 ms"),
        ),
        *(Goal(f"HSDP UP: {name}", of("UP", name), most=0) for name in LOSSES),
        *(
            Goal(
                f"HSDP ALL: {change} workers that are one replica, beyond a step",
                of("ALL", f"{change} beyond a step"),
                1,
            )
            for change in ("4 to 3", "3 to 4")
        ),
        *(Goal(f"HSDP ALL: {name}", of("ALL", name), most=0) for name in LOSSES),
        Goal("HSDP: the seal of a step, 4 ranks", of("SEAL", "seal"), most=0.5e-3),
        Goal("HSDP: training speed, against the same script without edriver", alone, least=0.98),
        Goal("HSDP: ranks with other bits than undisturbed, after 20 kills", other, most=0),
        Goal("HSDP: steps lost in 20 kills", of("BITS", "steps lost"), most=0),
    ]


GOALS = (
    *_kill("K1"),
    *_kill("K0"),
    Goal("K1: kill to full size again", _ours("K1", "adoption"), most=1.0),
    Goal(
        "K1: torchft's against edriver's, to full size",
        Key("K1", "torchft", "adoption"),
        least=3,
        over=_ours("K1", "adoption"),
    ),
    *_restarts("K1", "downtime"),
    *_restarts("K0", "downtime"),
    *_restarts("UP", "longest pause"),
    *_restarts("DOWN", "longest pause"),
    Goal("STOP: end of the lease to the next finished step", _ours("STOP", "after the lease"), most=0.150),
    Goal("UP: longest pause", _ours("UP", "longest pause"), most=0.080),
    Goal(
        "UP: the same, against torchft",
        _ours("UP", "longest pause"),
        most=1,
        over=Key("UP", "torchft", "longest pause"),
    ),
    Goal("UP: adoption, less the newcomers' own boot and a poll", _ours("UP", "adoption beyond boot"), most=0.5),
    *_whole("UP"),
    Goal("DOWN: longest pause", _ours("DOWN", "longest pause"), most=0.080),
    Goal(
        "DOWN: discovery's first answer to the first step by 2", _ours("DOWN", "first answer to first step"), most=0.5
    ),
    Goal("DOWN: steps lost", _ours("DOWN", "steps lost"), most=0),
    *_whole("DOWN"),
    Goal(
        "first step after launch, against bare processes that form a group",
        _ours("K1", "launch to the first step"),
        most=1.25,
        over=Key("K1", "bare", "launch to the group"),
    ),
    Goal("training speed, against a bare process group", _ours("SPEED", "ratio to bare"), least=0.99),
    Goal("goodput", _ours("GOODPUT", "goodput"), least=0.97),
    Goal("boundary: the check alone", _ours("BOUNDARY", "check"), most=1e-6),
    Goal("boundary: with all that is kept, ResNet-50's sizes", _ours("BOUNDARY", "boundary"), most=100e-6),
    Goal("boundary: the same, buffers as views", _ours("BOUNDARY", "boundary, flat buffers"), most=100e-6),
    Goal("boundary: right after a step, with cold caches", _ours("BOUNDARY", "boundary after a step"), most=100e-6),
    Goal(
        "commit of 1.2 GB, against a plain copy",
        _ours("COMMIT", "commit speed"),
        least=0.8,
        over=_ours("COMMIT", "copy speed"),
    ),
    Goal(
        "sync of 400 MB in 5,000 tensors, against a flat broadcast",
        _ours("SYNC", "sync speed"),
        least=0.8,
        over=_ours("SYNC", "broadcast speed"),
    ),
    *_journal(),
    *_driver(),
    *_on_ray(),
    *_sharded(),
    Goal("driver: memory", _ours("QUIET", "memory of the driver"), most=80e6),
    Goal("driver: processor", _ours("QUIET", "processor of the driver"), most=0.02),
    Goal("agent: memory", _ours("QUIET", "memory of an agent"), most=80e6),
    Goal("agent: processor", _ours("QUIET", "processor of an agent"), most=0.02),
    Goal("driver: first line of output", _ours("QUIET", "first line"), most=0.5),
)
"""The table "What it must reach", and the budgets of driver and agent."""
