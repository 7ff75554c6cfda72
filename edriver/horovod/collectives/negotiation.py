"""Before each collective its members agree on what they are about to call.

Each sends a digest of its call; where they are equal, the collective begins. Where they are not, the members send the
calls themselves, and all of them raise the same error. So a mistake never becomes a collective that hangs, or one whose
result is void. Agreements are begun in the order of the calls, in the set's own group, and are concluded by whoever
carries the operation out: the caller, or the set's thread for what nobody waits for. If only some of the members wait,
all of them use that thread's lane: a digest says by its lowest bit that its sender does not wait.

Nothing is cached, so members cannot disagree on what has been agreed: each collective costs a second, small one.
`DistributedOptimizer` makes one agreement per step, for all gradients.

The digest is of function, name, types, shapes and options, and is exchanged in one small all-reduce. Where digests
differ, the group keeps working after all have raised. Horovod caches what was agreed. With a cache, a member that
finds a call in it begins at once, and one whose call has changed would be left alone with a collective that the others
are not in; to find that out takes the message that the cache was to save. `join` comes with the agreement: a member
that has joined sends a mark instead of a digest, learns the call, and adds zeros.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import torch
import torch.distributed as dist

from edriver.horovod.collectives.background import runner_of
from edriver.horovod.collectives.handles import wait
from edriver.horovod.errors import MismatchError, peer_loss_translated
from edriver.horovod.process_sets import CollectiveLane, ProcessSet

JOINED: Final = 2
"""What a member that has called `join` sends instead of a digest, which are all larger."""

_LATER: Final = 1
"""Set in the digest of a call that does not wait."""


class Agreed(NamedTuple):
    """What the members have agreed on.

    Attributes:
        extras: the numbers of all members, in their order; 0 of one that has joined.
        lane: where the collective is to be.
    """

    extras: list[int]
    lane: CollectiveLane


class Reduction(NamedTuple):
    """A reduction that a collective consists of, in which a member that has joined takes part with zeros."""

    length: int
    dtype: str
    op: str


@dataclass(frozen=True, slots=True)
class CollectiveCall:
    """A call of a collective.

    Attributes:
        kind: of the function,
        name: what the script calls the operation; None: nothing.
        tensors: what it is called with, as text,
        options: and how.
        reductions: what it consists of; None: members that have joined cannot take part.
        refusal: why it cannot be; empty: nothing is wrong with it.
        lane: of the process set, in which the reductions are.
    """

    kind: str
    name: str | None
    tensors: tuple[str, ...]
    options: str = ""
    reductions: tuple[Reduction, ...] | None = None
    refusal: str = ""
    lane: int = 0

    def text(self) -> str:
        """As members send it."""
        return json.dumps(
            [self.kind, self.name, self.tensors, self.options, self.reductions, self.refusal, self.lane]
        )  # fmt: skip

    @staticmethod
    def read(text: str) -> CollectiveCall:
        """The call of a text."""
        kind, name, tensors, options, reductions, refusal, lane = json.loads(text)
        reduced = None if reductions is None else tuple(Reduction(*each) for each in reductions)
        return CollectiveCall(kind, name, tuple(tensors), options, reduced, refusal, lane)

    def __str__(self) -> str:
        named = "" if self.name is None else f" {self.name!r}"
        parts = [", ".join(self.tensors[:4]) + (" ..." if len(self.tensors) > 4 else ""), self.options, self.refusal]
        return f"{self.kind}{named} of {'; '.join(filter(None, parts)) or 'nothing'}"


class Agreement:
    """An agreement that is under way.

    Args:
        call: what this member is about to call.
        members: who takes part.
        extra: a number of this member's that the others need.
        later: whether `conclude` is called on the set's thread.

    Raises:
        ValueError: this rank is not a member.
        HorovodInternalError: a member is gone.
    """

    def __init__(self, call: CollectiveCall, members: ProcessSet, extra: int = 0, later: bool = False) -> None:
        self._call, self._extra, self._later = call, extra, later
        self._own = members.lane()
        self._meeting: Meeting | None = None
        if self._own.size > 1:
            self._text = call.text()
            self._runner = runner_of(members)
            self._meeting = Meeting(members, digest_of(self._text) | (_LATER if later else 0), extra)

    def conclude(self) -> Agreed:
        """Wait until all members have made the call; see `agree`."""
        call, agreed = self._call, Agreed([self._extra], self._own)
        if self._meeting is not None:
            digests, extras = self._meeting.conclude()
            agreed = Agreed(extras, self._lane(digests))
            if differ(digests):
                texts = shared(agreed.lane, self._text)
                compare([CollectiveCall.read(said) if said else None for said in texts], agreed.lane.ranks)
        if call.refusal:
            raise ValueError(f"{call.kind}{'' if call.name is None else f' {call.name!r}'}: {call.refusal}")
        return agreed

    def _lane(self, digests: Sequence[int]) -> CollectiveLane:
        if not any_later(digests) or (self._call.lane and not differ(digests)):
            return self._own
        assert self._runner is not None, "where it is not there, everyone waits"
        if not self._later:
            self._runner.drain()
        return self._runner.lane


def any_later(digests: Sequence[int]) -> bool:
    """Whether a member does not wait for its call."""
    return any(digest & _LATER for digest in digests)


def differ(digests: Sequence[int]) -> bool:
    """Whether members have called different things, or some have joined."""
    return len({digest & ~_LATER for digest in digests}) > 1 or JOINED in digests


def agree(call: CollectiveCall, members: ProcessSet, extra: int = 0) -> Agreed:
    """Wait for all members to make this call.

    Args:
        call: what this one is about to call.
        members: who takes part.
        extra: a number of this member's that the others need.

    Raises:
        MismatchError: the calls differ; names the ranks.
        ValueError: the call cannot be, on any member; or this rank is not one.
        HorovodInternalError: a member is gone.
    """
    return Agreement(call, members, extra).conclude()


def compare(calls: Sequence[CollectiveCall | None], ranks: Sequence[int]) -> None:
    """See that all members have made the same call; None: one has joined.

    Raises:
        MismatchError: they have not, or those that have joined cannot take part.
    """
    made = {rank: call for rank, call in zip(ranks, calls, strict=True) if call is not None}
    (first, expected), *others = made.items()
    if wrong := {rank: call for rank, call in others if call != expected}:
        rank, call = next(iter(wrong.items()))
        more = f" (and so did ranks {', '.join(map(str, [*wrong][1:]))}, or something else)" if len(wrong) > 1 else ""
        raise MismatchError(
            f"the members did not call the same collective: rank {first} called {expected}, "
            f"rank {rank} called {call}{more}. All of them must make the same calls in the same order"
        )
    if len(made) < len(calls) and expected.reductions is None:
        joined = [rank for rank in ranks if rank not in made]
        raise MismatchError(
            f"rank {first} called {expected}, and rank {joined[0]} has called join: ranks that have joined take part "
            "in reductions only"
        )


class Meeting:
    """An exchange of two numbers with all members.

    Args:
        members: who takes part.
        digest: of what this one is about to call, or JOINED,
        extra: and a number that comes with it.

    Raises:
        HorovodInternalError: a member is gone.
    """

    def __init__(self, members: ProcessSet, digest: int, extra: int) -> None:
        lane = members.lane()
        members.met += 1
        self._members, self._number, self._round = members, members.met, members.round_id
        self._slots = torch.zeros(2, lane.size, dtype=torch.int64, device="cpu")
        self._slots[:, lane.place] = torch.tensor([digest, extra], device="cpu")
        with peer_loss_translated():  # cheaper than a gather: everyone else's slots are 0
            self._work = dist.all_reduce(self._slots, group=lane.group(), async_op=True)

    def conclude(self) -> tuple[list[int], list[int]]:
        """Wait for all; returns everyone's numbers, in their order. Raises HorovodInternalError."""
        work, self._work = self._work, None
        wait(work)
        digests, extras = self._slots.tolist()
        joined = frozenset(place for place, said in enumerate(digests) if said == JOINED)
        self._members.note_joined(self._round, self._number, joined)
        return digests, extras


def met(members: ProcessSet, digest: int, extra: int) -> tuple[list[int], list[int]]:
    """Exchange two numbers with all members; returns everyone's, in their order. Raises HorovodInternalError."""
    return Meeting(members, digest, extra).conclude()


def shared(lane: CollectiveLane, text: str) -> list[str]:
    """Exchange texts with all members; returns everyone's, in their order.

    Raises:
        HorovodInternalError: a member is gone.
    """
    mine = text.encode()
    lengths = torch.zeros(lane.size, dtype=torch.int64, device="cpu")
    lengths[lane.place] = len(mine)
    all_reduced(lengths, lane)
    texts = torch.zeros(lane.size, max(1, int(lengths.max())), dtype=torch.uint8, device="cpu")
    if mine:
        texts[lane.place, : len(mine)] = torch.frombuffer(bytearray(mine), dtype=torch.uint8)
    all_reduced(texts, lane)
    return [bytes(row[:length].tolist()).decode() for row, length in zip(texts, lengths.tolist(), strict=True)]


def all_reduced(tensor: torch.Tensor, lane: CollectiveLane) -> torch.Tensor:
    """Sum up a tensor over all members, in place; returns it.

    Raises:
        HorovodInternalError: a member is gone.
    """
    if lane.size > 1:
        with peer_loss_translated():
            work = dist.all_reduce(tensor, group=lane.group(), async_op=True)
        wait(work)
    return tensor


@functools.lru_cache(maxsize=1024)
def digest_of(text: str) -> int:
    """An even number, above JOINED and below 2**63, that two texts hardly ever share."""
    return (int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 2 | 1 << 61) & ~_LATER


def outline(tensor: torch.Tensor, free_rows: bool = False) -> str:
    """A tensor's type and shape as text.

    Args:
        tensor: the tensor.
        free_rows: whether members may differ in the first dimension.
    """
    shape = [*map(str, tensor.shape)]
    if free_rows and shape:
        shape[0] = "any"
    return f"{str(tensor.dtype).removeprefix('torch.')} ({', '.join(shape)}) on {tensor.device.type}"
