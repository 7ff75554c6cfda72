"""Who saves what, agreed once for each structure of the state, through the round's store and without a collective.

Each rank sends its local plan; rank 0 makes the global plan by torch.distributed.checkpoint's planner, which leaves
what several ranks have in common to one of them, and sends each rank its share. As long as a rank's local plan is the
one that it has sent, a save asks the store for one number, that of the newest generation of plans.

If the state changes, the first rank that finds it begins the next generation. Others see its number at their next save,
and send their plans for it. A save while shares are missing is skipped: nobody waits for others in the training thread,
but for the first generation, once and within a bound.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Any, Final, NamedTuple

from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlan, WriteItem

from edriver.worker.checkpoints import pickles
from edriver.worker.checkpoints.memory.replicas import Difference, first_difference, written_once
from edriver.worker.checkpoints.memory.shard import ShardLayout
from edriver.worker.checkpoints.memory.shard_io import of_all

FIRST_TIMEOUT: Final = 20.0
"""Seconds for which a rank waits, at its first save, until all others have come to theirs."""

LAYOUT_BYTES: Final = 16
"""Length of Shard.layout."""

PREFIX: Final = "edriver/checkpoint-plans"
NUMBER: Final = f"{PREFIX}/generation"


@dataclass(frozen=True, slots=True)
class Share:
    """What a rank saves from now on.

    Attributes:
        layout: see Shard.layout.
        shard: what its shard has where.
        metadata: the checkpoint's, packed; on rank 0.
        difference: on rank 0: what ranks have differently that is kept once; see replicas.py.
    """

    layout: bytes
    shard: ShardLayout
    metadata: bytes | None = None
    difference: Difference | None = None


class Skipped(NamedTuple):
    """Why a rank cannot save now.

    Attributes:
        cause: in a word.
        reason: for people.
    """

    cause: str
    reason: str


class PlanAction(Enum):
    """What a rank does next."""

    USE = "save with the share that it has"
    SEND = "send its plan for the newest generation"
    RENEW = "begin the next generation, and send its plan for that"
    AWAIT = "look for its share"


def next_action(newest: int, sent: int, unchanged: bool, shared: int) -> PlanAction:
    """Decide what a rank does next.

    Args:
        newest: the number of the newest generation of all; 0: there is none yet.
        sent: of the generation for which this rank has sent its plan last,
        unchanged: whether its plan is still that one.
        shared: of the generation of which it has a share.
    """
    if newest == 0:
        return PlanAction.RENEW
    if sent < newest:
        return PlanAction.SEND
    if not unchanged:
        return PlanAction.RENEW
    return PlanAction.USE if shared == newest else PlanAction.AWAIT


class PlanExchange:
    """One rank's part in it.

    Args:
        store: the round's, torch's.
        rank: the rank,
        size: and the number of ranks.
        secret: the round's.
        first_timeout: see FIRST_TIMEOUT.
        draw: draws so many random bytes.
    """

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        secret: bytes,
        first_timeout: float = FIRST_TIMEOUT,
        draw: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self._store = store
        self._rank = rank
        self._size = size
        self._secret = secret
        self._first_timeout: float | None = first_timeout
        self._draw = draw
        self._plan: SavePlan | None = None
        self._sent = self._shared = 0
        self._share: Share | Skipped = Skipped("plans", "")
        self._changed = ""

    def share(
        self, plan: SavePlan, fingerprints: Callable[[], Mapping[str, bytes]] = dict[str, bytes]
    ) -> Share | Skipped:
        """What this rank saves of a state with that local plan; or why it cannot save now.

        Args:
            plan: the local plan.
            fingerprints: makes those of the state (replicas.py); called when the plan is sent.

        Raises:
            RuntimeError: the store is lost.
        """
        newest = self._store.add(NUMBER, 0)
        unchanged = plan is self._plan or plan == self._plan
        while (step := next_action(newest, self._sent, unchanged, self._shared)) in (PlanAction.SEND, PlanAction.RENEW):
            if step is PlanAction.RENEW:
                self._changed = _difference(self._plan, plan)
                newest = int(self._store.compare_set(NUMBER, str(newest), str(newest + 1)))
            self._send(newest, plan, fingerprints())
            unchanged = True
        if step is PlanAction.AWAIT:
            self._look(newest)
        if self._shared == newest:
            return self._share
        if newest == 1:
            return Skipped("plans", f"not all {self._size} ranks have come to their first save")
        return Skipped(
            "plans",
            f"the structure of the state has changed{self._changed}, and not all {self._size} ranks have saved since",
        )

    def _send(self, generation: int, plan: SavePlan, fingerprints: Mapping[str, bytes]) -> None:
        self._plan, self._sent = plan, generation
        self._set(self._key(generation, "plan", self._rank), (plan, dict(fingerprints)))

    def _look(self, generation: int) -> None:
        """Take this rank's share, if it is there; rank 0 makes those of all, if all plans are there."""
        kind, ranks = ("plan", range(self._size)) if self._rank == 0 else ("share", range(self._rank, self._rank + 1))
        keys = [self._key(generation, kind, rank) for rank in ranks]
        timeout, self._first_timeout = self._first_timeout, None
        if timeout is not None:
            with contextlib.suppress(RuntimeError):  # if the store is lost, the next call says so
                self._store.wait(keys, timedelta(seconds=timeout))
        if not self._store.check(keys):
            return
        found = [self._take(key) for key in keys]
        self._share = self._made(generation, found) if self._rank == 0 else self._received(*found)
        self._shared = generation

    def _made(self, generation: int, found: Sequence[tuple[SavePlan, dict[str, bytes]]]) -> Share | Skipped:
        difference = first_difference([prints for _, prints in found])
        plans = written_once([plan for plan, _ in found], () if difference is None else difference.keys)
        layout = self._draw(LAYOUT_BYTES)
        try:
            shared, metadata = DefaultSavePlanner().create_global_plan(plans)
        except Exception as error:  # noqa: BLE001  of the planner: what it says of a state that it cannot save
            skipped = Skipped("global plan", f"torch.distributed.checkpoint refuses the state: {error}")
            for rank in range(1, self._size):
                self._set(self._key(generation, "share", rank), skipped)
            return skipped
        layouts = [ShardLayout.of(plan.items) for plan in shared]
        for rank in range(1, self._size):
            self._set(self._key(generation, "share", rank), (layout, shared[rank].items))
        metadata.storage_data = of_all(enumerate(layouts))
        return Share(layout, layouts[0], pickles.packed(metadata), difference)

    def _received(self, found: Skipped | tuple[bytes, list[WriteItem]]) -> Share | Skipped:
        if isinstance(found, Skipped):
            return found
        layout, items = found
        return Share(layout, ShardLayout.of(items))

    def _key(self, generation: int, kind: str, rank: int) -> str:
        return f"{PREFIX}/{generation}/{kind}/{rank}"

    def _set(self, key: str, value: Any) -> None:
        self._store.set(key, pickles.sealed(value, self._secret, key))

    def _take(self, key: str) -> Any:
        value = pickles.opened(self._store.get(key), self._secret, key)
        self._store.delete_key(key)
        return value


def _difference(before: SavePlan | None, plan: SavePlan) -> str:
    """What has changed, for people: the first item that is new, gone, or another."""
    if before is None:
        return ""
    old, new = ({item.index: item for item in each.items} for each in (before, plan))
    for index in new | old:
        if index not in old:
            return f" ({index.fqn} is new)"
        if index not in new:
            return f" ({index.fqn} is gone)"
        if old[index] != new[index]:
            return f" ({index.fqn} has another shape or type)"
    return ""
