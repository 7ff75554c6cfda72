"""Relay: one stream of bytes from the source through every receiver in turn, at the speed of the slowest link.

The source sends to the first receiver, which passes each piece on as soon as it has it, and so forth: every link
carries the stream once, however many receivers there are. Ranks of one host are contiguous, so each host's link does
too. All of it is torch.distributed's point-to-point calls in the default group.

Nobody waits for a send before the other side has said that it has the piece. Gloo never wakes the sender of a
half-written message when its peer dies or is cut off (torch 2.13: signalException in gloo/transport/tcp/pair.cc passes
over the queue of unfinished writes), but it wakes who waits for a message of which nothing has come yet: each piece is
acknowledged by a byte, and that byte is what the sender waits for.
"""

from __future__ import annotations

import contextlib
import mmap
from collections import deque
from collections.abc import Iterable

import torch
import torch.distributed as dist

PIECE_BYTES = 256 * 2**10
"""How much is sent at a time.

Small, although the acknowledgements protect the senders: with pieces of 2 MiB, 3 of fewer than 12 syncs of which a rank
was killed left the last rank of the chain hanging. A piece that fits into the sockets' buffers is written whole.
"""

WINDOW = 4
"""How many pieces may be on their way from one rank to the next without an acknowledgement."""


def staging(length: int) -> torch.Tensor:
    """New memory, uint8 of shape (length,), length > 0, page-aligned and in huge pages where the kernel has them.

    Filling fresh memory costs a page fault for every 4 KiB, which is more than receiving it: 145 ms for 400 MB, 40 ms
    with huge pages.
    """
    memory = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)


def pieces_of(memory: torch.Tensor) -> list[torch.Tensor]:
    """Views of memory of one dimension, PIECE_BYTES long but for the last, which may be shorter."""
    return [memory[first : first + PIECE_BYTES] for first in range(0, len(memory), PIECE_BYTES)]


class Downstream:
    """The next rank of the chain, to which pieces are passed on.

    Args:
        rank: its rank in the default group; None at the end of the chain, where nothing is sent.
    """

    def __init__(self, rank: int | None) -> None:
        self._rank = rank
        self._under_way: deque[tuple[dist.Work, dist.Work]] = deque()

    def pass_on(self, piece: torch.Tensor) -> None:
        """Start sending a piece, once fewer than WINDOW are under way; it must not be written to meanwhile.

        Raises:
            RuntimeError: the connection broke.
        """
        if self._rank is None:
            return
        if len(self._under_way) == WINDOW:
            self._settle_oldest()
        # The receive first: see Upstream._take.
        acknowledgement = _started(dist.irecv(torch.empty(1, dtype=torch.uint8), self._rank))
        self._under_way.append((_started(dist.isend(piece, self._rank)), acknowledgement))

    def settle(self) -> None:
        """Return when the next rank has all that was passed on.

        Raises:
            RuntimeError: the connection broke.
        """
        while self._under_way:
            self._settle_oldest()

    def _settle_oldest(self) -> None:
        sending, acknowledgement = self._under_way.popleft()
        acknowledgement.wait()
        sending.wait()  # it has been written: this does not block


class Upstream:
    """The rank of the chain before this one, from which pieces come.

    Args:
        rank: its rank in the default group.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._acknowledging: deque[dist.Work] = deque(maxlen=WINDOW)

    def receive(self, pieces: Iterable[torch.Tensor], downstream: Downstream) -> None:
        """Fill the pieces in their order, and pass each on when it has come; returns when downstream has all.

        Args:
            pieces: uint8, contiguous, of the lengths in which they are sent. They are not written to later.
            downstream: where they go next.

        Raises:
            RuntimeError: the connection to the rank before or behind broke; pieces may be half filled.
        """
        posted: deque[tuple[torch.Tensor, dist.Work]] = deque()
        for piece in pieces:
            # One more than can come, so that a piece always finds its receive already posted.
            if len(posted) > WINDOW:
                self._take(*posted.popleft(), downstream)
            posted.append((piece, _started(dist.irecv(piece, self._rank))))
        while posted:
            self._take(*posted.popleft(), downstream)
        downstream.settle()

    def _take(self, piece: torch.Tensor, arriving: dist.Work, downstream: Downstream) -> None:
        arriving.wait()
        # Never waited for: it would not wake if the rank before died just now. It need not be, for Gloo writes at once
        # what its peer has already posted a receive for, as this one has, ahead of the piece.
        self._acknowledging.append(_started(dist.isend(torch.zeros(1, dtype=torch.uint8), self._rank)))
        downstream.pass_on(piece)


def _started(work: dist.Work | None) -> dist.Work:
    assert work is not None, "this rank is not in the default group"
    return work
