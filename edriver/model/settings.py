"""What the operator decides about a run, checked once at the start."""

from __future__ import annotations

import math
from typing import Final

from edriver.model.defaults import ELASTIC_TIMEOUT, START_TIMEOUT
from edriver.model.frozen import frozen
from edriver.model.limits import MAX_TOTAL_SLOTS
from edriver.model.mode import Mode, OnLoss
from edriver.model.stall_limits import DEFAULT_STALL_LIMITS, Phase

SLOT_COOLDOWN: Final = (1.0, 60.0)
"""Shortest and longest pause of a slot by default, from its second failure on, in seconds."""

HOST_COOLDOWN: Final = (10.0, 300.0)
"""The same for a host. Longer, as what affects a whole host (a full disk, a driver) takes minutes to fix."""

WHOLE_HOSTS: Final = 0
"""The replica size with which each replica is a whole host, however many slots that has."""


@frozen
class Settings:
    """Limits and bounds of a run. Times are in seconds.

    Attributes:
        np: the number of workers that the first round waits for.
        min_np: minimum number of workers.
        max_np: maximum number of workers.
        start_timeout: how long to wait for np slots; after that, min_np slots are enough.
        elastic_timeout: how long to wait for min_np workers (and for a holder of the state) once training has begun.
        reset_limit: the number of rounds that may end by a failure before the run fails; None: no limit.
        preemption_limit: the number of rounds that may end because slots are taken away (a drain, or a host that
            discovery no longer names).
        resize_limit: the number of rounds that may end for any other change of the members.
        reset_window: a round that ended longer ago than this no longer counts for these three limits.
        cooldown_range: shortest and longest pause before a slot whose worker failed is used again, and a host whose
            slots failed, doubling with every failure; None: the first replacement comes at once, later ones after 1 s
            to 60 s, and a host's quarantine lasts 10 s to 300 s.
        join_window: how long workers wait for others that still boot, so that they join together, once the latest of
            them is ready.
        rejoin_timeout: how long a survivor of an ended round may take to wait again before the next round forms
            without it.
        newcomer_delay: the longest delay of the start of newcomers after a round has begun: they would compete for
            processors with members that have not made a step yet.
        resize_pause: the shortest time that a round runs before it is interrupted to take in newcomers, so that a
            cluster that adds hosts one by one costs one round; hosts that leave do not wait for it.
        report_timeout: how long a member may take to answer a notice; longer than any phase may last.
        boundary_timeout: how long a member may take to reach the agreed boundary, if that is more than elastic_timeout:
            a long evaluation is not a failure. Follows from --stall-timeout.
        long_work_timeout: how long work that the script does not announce may take at a place where members have
            stalled before. Follows from --stall-timeout.
        uneven_steps_timeout: how long members may wait in collectives while the others are done and no member is
            doing work that they could wait for.
        idle_timeout: in restart mode, how long a script may stand still once the others have run to their end.
        wake_window: the time in which no suspected worker is ended after one of them shows a sign of life.
        leave_grace: how long a worker that was ordered to leave may take to exit before it is terminated.
        checkpoint_copies: the number of other hosts that get a copy of each checkpoint in memory.
        failure_window: failures of a slot or host longer ago than this are forgotten.
        mode: what the script expects of the driver.
        replica_size: the number of workers in a replica, or WHOLE_HOSTS: each round has whole replicas only.
        one_replica: whether all workers of a round hold the state once between them, in elastic mode. A round then has
            any number of workers, and replica_size is 1.
        on_loss: what a round that has lost workers is followed by.
    """

    np: int
    min_np: int
    max_np: int
    start_timeout: float = START_TIMEOUT
    elastic_timeout: float = ELASTIC_TIMEOUT
    reset_limit: int | None = None
    preemption_limit: int | None = None
    resize_limit: int | None = None
    reset_window: float = math.inf
    cooldown_range: tuple[float, float] | None = None
    join_window: float = 3.0
    rejoin_timeout: float = 30.0
    newcomer_delay: float = 1.0
    resize_pause: float = 0.0
    report_timeout: float = 2700.0
    boundary_timeout: float = 6600.0
    long_work_timeout: float = DEFAULT_STALL_LIMITS[Phase.EVAL]
    uneven_steps_timeout: float = 60.0
    idle_timeout: float = 600.0
    wake_window: float = 10.0
    leave_grace: float = 30.0
    checkpoint_copies: int = 1
    failure_window: float = 600.0
    mode: Mode = Mode.ELASTIC
    replica_size: int = 1
    one_replica: bool = False
    on_loss: OnLoss = OnLoss.SHRINK

    def __post_init__(self) -> None:
        """Check that the limits fit together.

        Raises:
            ValueError: with a sentence that names the flags.
        """
        if self.np < 1:
            raise ValueError(f"-np is {self.np}: a run needs at least one worker")
        if not 1 <= self.min_np <= self.np:
            raise ValueError(f"--min-np is {self.min_np}: it must lie between 1 and -np ({self.np})")
        if self.max_np < self.np:
            raise ValueError(f"--max-np is {self.max_np}: it must not be below -np ({self.np})")
        if self.max_np > MAX_TOTAL_SLOTS:
            flag = "--max-np" if self.max_np > self.np else "-np"
            raise ValueError(f"{flag} is {self.max_np}: a run has at most {MAX_TOTAL_SLOTS} workers")
        for flag, value in (
            ("--start-timeout", self.start_timeout),
            ("--elastic-timeout", self.elastic_timeout),
            ("--reset-window", self.reset_window),
        ):
            if value <= 0:
                raise ValueError(f"{flag} is {value:g}: it must be above 0 seconds")
        if self.resize_pause < 0:
            raise ValueError(f"--resize-pause is {self.resize_pause:g}: it must not be negative")
        if self.reset_limit is not None and self.reset_limit < 0:
            raise ValueError(f"--reset-limit is {self.reset_limit}: it must not be negative")
        if self.cooldown_range is not None and not 0 < self.cooldown_range[0] <= self.cooldown_range[1]:
            low, high = self.cooldown_range
            raise ValueError(
                f"--blacklist-cooldown-range is {low:g} {high:g}: it takes the shortest and the longest pause "
                "in seconds, both above 0, the shortest first"
            )
        if self.replica_size != 1:
            self._check_replicas()
        if self.on_loss is OnLoss.WAIT and not self.mode.members_survive:
            raise ValueError(
                "--on-loss wait is for scripts that call edriver.run (--mode elastic): in restart mode --min-np says "
                "with how many workers a round begins"
            )
        if self.one_replica and not self.mode.members_survive:
            raise ValueError(
                "--replica-size all is for scripts that call edriver.run (--mode elastic): in restart mode leave it "
                "out, and the script is started again with as many workers as there are"
            )

    def _check_replicas(self) -> None:
        size = self.replica_size
        if size == WHOLE_HOSTS:
            if self.mode.members_survive:
                raise ValueError(
                    "--replica-size host is for scripts in restart mode: with --mode elastic give a number of workers"
                )
            return
        if size < 1:
            raise ValueError(f"--replica-size is {size}: it must be at least 1, or host")
        for flag, count in (("-np", self.np), ("--min-np", self.min_np), ("--max-np", self.max_np)):
            if count % size and count != MAX_TOTAL_SLOTS:  # which means no limit
                near = nearest_sizes(count, size)
                raise ValueError(f"{flag} is {count}: with --replica-size {size} it must be a multiple, such as {near}")

    def cooldown(self, failures: int, draw: float) -> float:
        """Seconds before a slot is used again.

        Args:
            failures: how often it has failed, at least once.
            draw: a random number from 0 up to 1.
        """
        if self.cooldown_range is not None:
            return _backed_off(self.cooldown_range, failures, draw)
        return 0.0 if failures == 1 else _backed_off(SLOT_COOLDOWN, failures - 1, draw)

    def host_cooldown(self, quarantines: int, draw: float) -> float:
        """Seconds for which a host is left alone at this quarantine, counted from 1; `draw` as above."""
        return _backed_off(self.cooldown_range or HOST_COOLDOWN, quarantines, draw)


def nearest_sizes(count: int, replica_size: int) -> str:
    """The multiples of a replica's size below and above a number: "4 or 8"."""
    below = count // replica_size * replica_size
    return f"{below} or {below + replica_size}" if below else str(replica_size)


def _backed_off(limits: tuple[float, float], times: int, draw: float) -> float:
    """A pause between two limits: exponential back-off with equal jitter.

    Half of a ceiling that doubles, and a random share of the other half ("Exponential Backoff And Jitter", AWS
    Architecture Blog, 2015): what has failed together, because of one file server, is not started together again.
    """
    low, high = limits
    ceiling = min(low * 2.0 ** min(times, 32), high)
    return max(low, ceiling * (1.0 + draw) / 2.0)
