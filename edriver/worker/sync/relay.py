"""Relay: one stream of bytes from the source through every receiver in turn, at the speed of the slowest link.

The source sends to the first receiver, which passes each piece on as soon as it has it, and so forth: every link
carries the stream once, however many receivers there are. Ranks of one host are contiguous, so each host's link does
too. All of it is torch.distributed's point-to-point calls in the default group.

The last receiver has all of it when the first one has, and as many pieces' times later as there are receivers between.
So pieces are smaller in a long chain (`piece_bytes`), in which that would otherwise be most of the time.

When a peer dies or is cut off, Gloo (torch 2.13: signalException in gloo/transport/tcp/pair.cc) wakes neither who waits
for a send that is half written nor who waits for a message that has half arrived. It wakes who waits for a message of
which nothing has been taken in, and a message without elements is taken in whole or not at all. So nothing here waits
for anything else: each piece is followed by such an empty message, which shows that it has arrived, and answered by
one, which shows that it has been received. Messages between two ranks arrive in the order in which they were sent.
"""

from __future__ import annotations

import contextlib
import mmap
from collections import deque
from collections.abc import Iterable

import torch
import torch.distributed as dist

from edriver.worker.backend.heap import HEAP_BYTES

PIECE_BYTES = 4 * 2**20
"""Bytes that are sent at a time. Each piece costs its two ranks some thread switches, independently of its length."""

LONG_CHAIN = 8
"""Receivers from which on pieces are smaller: 8 get 400 MB in 1.07 times the time in which one does."""

_MIN_PIECE_BYTES = 256 * 2**10

_WINDOW_BYTES = 32 * 2**20
"""Bytes that one rank may send to the next without an acknowledgement.

On busy processors, fewer make the ranks wait for each other: with 4 MiB a sync took twice as long.
"""

_MIN_WINDOW, _MAX_WINDOW = 8, 64
"""The same in pieces, if these are very long or short."""


def piece_bytes(length: int, receivers: int) -> int:
    """The number of bytes to send at a time, so that a long chain takes at most a tenth longer than its first link.

    Args:
        length: of the stream, in bytes.
        receivers: in the chain.
    """
    if receivers <= LONG_CHAIN:
        return PIECE_BYTES
    return max(_MIN_PIECE_BYTES, min(PIECE_BYTES, length // (10 * receivers)))


def window_of(piece: int) -> int:
    """The number of pieces of that many bytes that one rank may send to the next without an acknowledgement."""
    return min(_MAX_WINDOW, max(_MIN_WINDOW, _WINDOW_BYTES // piece))


def staging(length: int) -> torch.Tensor:
    """New memory, uint8 of shape (length,), length > 0; if it is large, in huge pages where the kernel has them.

    Filling fresh memory costs a page fault for every 4 KiB, which is more than receiving it: 145 ms for 400 MB, 40 ms
    with huge pages. A little comes from the heap, which `edriver.worker.backend.heap` has filled.
    """
    if length < HEAP_BYTES:
        return torch.empty(length, dtype=torch.uint8, device="cpu")
    memory = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)


def pieces_of(memory: torch.Tensor, piece: int) -> list[torch.Tensor]:
    """Views of memory of one dimension, each of that many bytes but for the last, which may be shorter."""
    return [memory[first : first + piece] for first in range(0, len(memory), piece)]


class Downstream:
    """The next rank of the chain, to which pieces are passed on.

    Args:
        rank: its rank in the default group; None at the end of the chain, where nothing is sent.
        window: pieces that may be under way.
    """

    def __init__(self, rank: int | None, window: int) -> None:
        self._rank, self._window = rank, window
        self._under_way: deque[tuple[dist.Work, dist.Work, dist.Work]] = deque()

    def pass_on(self, piece: torch.Tensor) -> None:
        """Start sending a piece, once fewer than the window has are under way; it must not be written to meanwhile.

        Raises:
            RuntimeError: the connection broke.
        """
        if self._rank is None:
            return
        if len(self._under_way) == self._window:
            self._await_oldest()
        # The receive first: see Upstream._take.
        answer = _started(dist.irecv(_empty(), self._rank))
        sending = _started(dist.isend(piece, self._rank))
        self._under_way.append((answer, sending, _started(dist.isend(_empty(), self._rank))))

    def finish(self) -> None:
        """Return when the next rank has all that was passed on.

        Raises:
            RuntimeError: the connection broke.
        """
        while self._under_way:
            self._await_oldest()

    def _await_oldest(self) -> None:
        # The sends are over then, and need not be waited for. Until then Gloo needs them.
        self._under_way[0][0].wait()
        self._under_way.popleft()


class Upstream:
    """The rank of the chain before this one, from which pieces come.

    Args:
        rank: its rank in the default group.
        window: pieces that may be under way.
    """

    def __init__(self, rank: int, window: int) -> None:
        self._rank, self._window = rank, window
        self._answering: deque[dist.Work] = deque(maxlen=window)

    def receive(self, pieces: Iterable[torch.Tensor], downstream: Downstream) -> None:
        """Fill the pieces in their order, and pass each on when it has arrived; returns when downstream has all.

        Args:
            pieces: uint8, contiguous, of the lengths in which they are sent. They are not written to later.
            downstream: where they go next.

        Raises:
            RuntimeError: the connection to the rank before or behind broke; pieces may be half filled.
        """
        posted: deque[tuple[torch.Tensor, dist.Work, dist.Work]] = deque()
        for piece in pieces:
            # One more than can come, so that a piece always finds its receive already posted.
            if len(posted) > self._window:
                self._take(*posted.popleft(), downstream)
            arriving = _started(dist.irecv(piece, self._rank))
            posted.append((piece, arriving, _started(dist.irecv(_empty(), self._rank))))
        while posted:
            self._take(*posted.popleft(), downstream)
        downstream.finish()

    def _take(self, piece: torch.Tensor, arriving: dist.Work, arrived: dist.Work, downstream: Downstream) -> None:
        arrived.wait()
        arriving.wait()  # it arrived before: this does not block
        # Never waited for. Gloo writes at once what its peer has already posted a receive for, as this one has, ahead
        # of the piece.
        self._answering.append(_started(dist.isend(_empty(), self._rank)))
        downstream.pass_on(piece)


def _empty() -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device="cpu")


def _started(work: dist.Work | None) -> dist.Work:
    assert work is not None, "this rank is not in the default group"
    return work
