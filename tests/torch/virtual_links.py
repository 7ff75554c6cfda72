"""Links of a given bandwidth, in virtual time, in place of torch.distributed's point-to-point calls.

Each rank is a thread. A message is under way once both its ends are posted; the messages of a link follow one another.
While all ranks wait, time goes on to the next message that arrives.
"""

from __future__ import annotations

import heapq
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest.mock import patch

import torch

from edriver.worker.sync import relay


@dataclass(eq=False)
class VirtualWork:
    """One end of a message.

    Args:
        links: that it is sent over.
        nbytes: of the message.
    """

    links: VirtualLinks
    nbytes: int
    done: bool = False
    awaited_by: threading.Semaphore | None = None

    def wait(self) -> None:
        """Return once the message has arrived."""
        self.links.wait_for(self)


@dataclass(eq=False)
class Link:
    """From one rank to another: ends of messages whose other end is not posted, and until when it is busy."""

    sends: deque[VirtualWork] = field(default_factory=deque)
    receives: deque[VirtualWork] = field(default_factory=deque)
    busy_until: float = 0.0


class VirtualLinks:
    """Between any two ranks, one each way.

    Args:
        bandwidth: in bytes a second, of each link.
        latency: of a message, in seconds.
        turn: seconds of a link that each message takes beside its bytes.

    Attributes:
        now: the time, in seconds.
    """

    def __init__(self, bandwidth: float, latency: float = 0.0, turn: float = 0.0) -> None:
        self.now = 0.0
        self._bandwidth, self._latency, self._turn = bandwidth, latency, turn
        self._links: defaultdict[tuple[int, int], Link] = defaultdict(Link)
        self._arrivals: list[tuple[float, int, tuple[VirtualWork, VirtualWork]]] = []
        self._count = 0
        self._running = 0
        self._lock = threading.Lock()
        self._ranks = threading.local()

    def run(self, ranks: Sequence[Callable[[], None]]) -> float:
        """Run each rank's function in a thread; returns when the last one has ended, in seconds."""
        errors: list[BaseException] = []

        def be(rank: int) -> None:
            self._ranks.own = rank
            try:
                ranks[rank]()
            except BaseException as error:  # noqa: BLE001  raised below
                errors.append(error)
            with self._lock:
                self._running -= 1
                self._advance()

        threads = [threading.Thread(target=be, args=(rank,), daemon=True) for rank in range(len(ranks))]
        self._running = len(threads)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return self.now

    def isend(self, tensor: torch.Tensor, dst: int) -> Any:
        """As torch.distributed has it."""
        return self._post(self._ranks.own, dst, tensor.nbytes, sends=True)

    def irecv(self, tensor: torch.Tensor, src: int) -> Any:
        """As torch.distributed has it."""
        return self._post(src, self._ranks.own, tensor.nbytes, sends=False)

    def _post(self, source: int, target: int, nbytes: int, *, sends: bool) -> VirtualWork:
        work = VirtualWork(self, nbytes)
        with self._lock:
            link = self._links[source, target]
            (link.sends if sends else link.receives).append(work)
            if link.sends and link.receives:
                sent, received = link.sends.popleft(), link.receives.popleft()
                assert sent.nbytes == received.nbytes, f"{sent.nbytes} bytes are sent for {received.nbytes}"
                link.busy_until = max(self.now, link.busy_until) + self._turn + nbytes / self._bandwidth
                self._count += 1
                heapq.heappush(self._arrivals, (link.busy_until + self._latency, self._count, (sent, received)))
        return work

    def wait_for(self, work: VirtualWork) -> None:
        """Have the calling rank wait."""
        with self._lock:
            if work.done:
                return
            work.awaited_by = arrival = threading.Semaphore(0)
            self._running -= 1
            self._advance()
        arrival.acquire()

    def _advance(self) -> None:
        """While all ranks wait, let messages arrive: those of the next moment."""
        while not self._running and self._arrivals:
            self.now = self._arrivals[0][0]
            while self._arrivals and self._arrivals[0][0] == self.now:
                for work in heapq.heappop(self._arrivals)[2]:
                    work.done = True
                    if work.awaited_by is not None:
                        self._running += 1
                        work.awaited_by.release()


def relay_seconds(length: int, receivers: int, piece: int, links: VirtualLinks) -> float:
    """What a stream takes from the source to the last receiver of a chain: the relay itself, without any bytes.

    Args:
        length: of the stream, in bytes.
        receivers: in the chain.
        piece: bytes that are sent at a time.
        links: new ones.
    """
    stream = torch.empty(length, dtype=torch.uint8, device="meta")
    window = relay.window_of(piece)

    def send() -> None:
        downstream = relay.Downstream(1, window)
        for part in relay.pieces_of(stream, piece):
            downstream.pass_on(part)
        downstream.finish()

    def receive(rank: int) -> None:
        behind = relay.Downstream(rank + 1 if rank < receivers else None, window)
        relay.Upstream(rank - 1, window).receive(relay.pieces_of(stream, piece), behind)

    with patch.object(relay, "dist", links):
        return links.run([send, *(partial(receive, rank) for rank in range(1, receivers + 1))])
