"""Before each collective its members agree on what they are about to call.

Each sends a digest of its call; where they are equal, the collective begins. Where they are not, the members send the
calls themselves, and all of them raise the same error. So a mistake never becomes a collective that hangs, or one whose
result is void.

Nothing is cached, so members cannot disagree on what has been agreed: each collective costs a second, small one.
`DistributedOptimizer` makes one agreement per step, for all gradients.
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

from edriver.horovod.collectives.handles import wait
from edriver.horovod.errors import MismatchError, peer_loss_translated
from edriver.horovod.process_sets import ProcessSet

JOINED: Final = 1
"""What a member that has called `join` sends instead of a digest, which are all larger."""


class Reduction(NamedTuple):
    """A reduction that a collective consists of, in which a member that has joined takes part with zeros."""

    length: int
    dtype: str
    op: str


@dataclass(frozen=True, slots=True)
class Call:
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
    def read(text: str) -> Call:
        """The call of a text."""
        kind, name, tensors, options, reductions, refusal, lane = json.loads(text)
        reduced = None if reductions is None else tuple(Reduction(*each) for each in reductions)
        return Call(kind, name, tuple(tensors), options, reduced, refusal, lane)

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

    Raises:
        HorovodInternalError: a member is gone.
    """

    def __init__(self, call: Call, members: ProcessSet, extra: int = 0) -> None:
        self._call, self._members, self._extra = call, members, extra
        self._text = call.text()
        self._meeting: Meeting | None = None
        members.group()
        if members.size() > 1:
            self._meeting = Meeting(members, digest_of(self._text), extra)
            members.outstanding = self.conclude

    def reached(self) -> bool:
        """Whether `conclude` would not wait."""
        return self._meeting is None or self._meeting.over()

    def conclude(self) -> list[int]:
        """Wait until all members have made the call; see `agree`. Nothing happens the second time."""
        call, members = self._call, self._members
        extras = [self._extra]
        if self._meeting is not None:
            meeting, self._meeting, members.outstanding = self._meeting, None, None
            digests, extras = meeting.conclude()
            if members.joined or len(set(digests)) > 1:
                compare([Call.read(said) if said else None for said in shared(members, self._text)], members)
        if call.refusal:
            raise ValueError(f"{call.kind}{'' if call.name is None else f' {call.name!r}'}: {call.refusal}")
        return extras


def agree(call: Call, members: ProcessSet, extra: int = 0) -> list[int]:
    """Wait for all members to make this call.

    Args:
        call: what this one is about to call.
        members: who takes part.
        extra: a number of this member's that the others need.

    Returns:
        The numbers of all members, in their order; 0 of one that has joined.

    Raises:
        MismatchError: the calls differ; names the ranks.
        ValueError: the call cannot be, on any member.
        HorovodInternalError: a member is gone.
    """
    return Agreement(call, members, extra).conclude()


def compare(calls: Sequence[Call | None], members: ProcessSet) -> None:
    """See that all members have made the same call; None: one has joined.

    Raises:
        MismatchError: they have not, or those that have joined cannot take part.
    """
    made = {rank: call for rank, call in zip(members.ranks, calls, strict=True) if call is not None}
    (first, expected), *others = made.items()
    if wrong := {rank: call for rank, call in others if call != expected}:
        rank, call = next(iter(wrong.items()))
        more = f" (and so did ranks {', '.join(map(str, [*wrong][1:]))}, or something else)" if len(wrong) > 1 else ""
        raise MismatchError(
            f"the members did not call the same collective: rank {first} called {expected}, "
            f"rank {rank} called {call}{more}. All of them have to make the same calls in the same order"
        )
    if len(made) < len(calls) and expected.reductions is None:
        joined = [rank for rank in members.ranks if rank not in made]
        raise MismatchError(
            f"rank {first} called {expected}, and rank {joined[0]} has called join: those that have joined take part "
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
        MismatchError: the one before, which had not been concluded, was no agreement.
    """

    def __init__(self, members: ProcessSet, digest: int, extra: int) -> None:
        members.begin_meeting()
        self._members = members
        self._slots = torch.zeros(2, members.size(), dtype=torch.int64, device="cpu")
        self._slots[:, members.rank()] = torch.tensor([digest, extra], device="cpu")
        with peer_loss_translated():  # cheaper than a gather: everyone else's slots are 0
            self._work = dist.all_reduce(self._slots, group=members.group(), async_op=True)

    def over(self) -> bool:
        """Whether `conclude` would not wait."""
        return self._work is None or bool(self._work.is_completed())

    def conclude(self) -> tuple[list[int], list[int]]:
        """Wait for all; returns everyone's numbers, in their order. Raises HorovodInternalError."""
        wait(self._work)
        digests, extras = self._slots.tolist()
        self._members.joined = frozenset(place for place, said in enumerate(digests) if said == JOINED)
        return digests, extras


def met(members: ProcessSet, digest: int, extra: int) -> tuple[list[int], list[int]]:
    """Exchange two numbers with all members; returns everyone's, in their order. Raises HorovodInternalError."""
    return Meeting(members, digest, extra).conclude()


def shared(members: ProcessSet, text: str) -> list[str]:
    """Exchange texts with all members; returns everyone's, in their order.

    Raises:
        HorovodInternalError: a member is gone.
    """
    mine = text.encode()
    lengths = torch.zeros(members.size(), dtype=torch.int64, device="cpu")
    lengths[members.rank()] = len(mine)
    with peer_loss_translated():
        dist.all_reduce(lengths, group=members.group())
        texts = torch.zeros(members.size(), max(1, int(lengths.max())), dtype=torch.uint8, device="cpu")
        if mine:
            texts[members.rank(), : len(mine)] = torch.frombuffer(bytearray(mine), dtype=torch.uint8)
        dist.all_reduce(texts, group=members.group())
    return [bytes(row[:length].tolist()).decode() for row, length in zip(texts, lengths.tolist(), strict=True)]


@functools.lru_cache(maxsize=1024)
def digest_of(text: str) -> int:
    """A number, above JOINED and below 2**63, that two texts hardly ever share."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 2 | 1 << 61


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
