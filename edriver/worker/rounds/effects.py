"""What the loop of a worker's rounds asks for, and what it is answered: data, which threads or a simulation carry out.

An effect is answered with None unless its docstring says otherwise. Build, Adapt, Sync, Train, Settle and
CompleteShadows run the script's code or wait for peers: what they raise is answered with Raised. An exception out of
any other effect ends the loop.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from edriver.model.shards import HeldShards
from edriver.v1 import notification_pb2 as pb


class Raised(enum.Enum):
    """What an attempt (below) raised. The exception stays outside: its traceback keeps the old group alive."""

    HOSTS_UPDATED = "hosts updated"  # all members stop at this boundary
    PEER_LOST = "peer lost"
    UNPROVEN = "unproven"  # a connection did not lead to a member
    RUNTIME_ERROR = "runtime error"  # of unknown origin: severed connections surface in many words
    OWN = "own"  # the script's own


class Complaint(enum.Enum):
    """How the script continued after a boundary had raised for it to leave the round."""

    CALLED_AGAIN = "called again"  # it reached another boundary
    RETURNED = "returned"  # its function returned


@dataclass(frozen=True, slots=True)
class WaitForChange:
    """Wait until a notice has been taken.

    Attributes:
        for_verdict: whether a boundary waits for the others: for them to reach theirs may take an hour.
    """

    for_verdict: bool = False


@dataclass(frozen=True, slots=True)
class Say:
    """Report something to the driver, before any notice is taken."""

    report: pb.Report


@dataclass(frozen=True, slots=True)
class Build:
    """Tear down the last round's group, and build the one of the assigned round. Answered with Raised, or None."""


@dataclass(frozen=True, slots=True)
class Adapt:
    """Adapt the state to this round's rank and size. Answered with Raised, or None."""


@dataclass(frozen=True, slots=True)
class Sync:
    """Bring receivers to the source's state. Answered with Raised, or whether the result counts as committed."""


@dataclass(frozen=True, slots=True)
class Train:
    """Call the script's function. Answered with Raised, or None when it has returned."""


@dataclass(frozen=True, slots=True)
class Settle:
    """Wait until this worker's device has finished the round's work. Answered with Raised, or None."""


@dataclass(frozen=True, slots=True)
class CompleteShadows:
    """Have all shadows of shards up to date, where all members stop. Answered with Raised, or None."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """Take note that the training thread has left the round's computation.

    Attributes:
        loss: whether for the loss of a peer.
        size: by an exception of the script's own; the number of members, which it may be due to. 0: not by one.
    """

    loss: bool
    size: int = 0


@dataclass(frozen=True, slots=True)
class Describe:
    """Answered with the text of what was raised last, as the driver is to show it."""


@dataclass(frozen=True, slots=True)
class IsClean:
    """Answered with whether the state can return to its last boundary."""


@dataclass(frozen=True, slots=True)
class WhyTorn:
    """Answered with why the state cannot return to its last boundary, and what to do about it, as text for people."""


@dataclass(frozen=True, slots=True)
class UncountedSteps:
    """Answered with how many steps the script has made in a round in which it passes no boundary; 0: it passes some."""


@dataclass(frozen=True, slots=True)
class Digest:
    """Answered with the digest of the state that is about to be offered.

    Attributes:
        committed: of the last commit, instead of the last boundary.
    """

    committed: bool


@dataclass(frozen=True, slots=True)
class ShardsHeld:
    """Answered with what this worker holds of the state that is about to be offered: see State.shards_held.

    Attributes:
        committed: of the last commit, instead of the last boundary.
    """

    committed: bool


@dataclass(frozen=True, slots=True)
class NewestCheckpoint:
    """Answered with the steps of the newest complete checkpoint that is ahead of the state; None: no checkpoints.

    Attributes:
        look: whether to look for a checkpoint; otherwise the answer is 0, or None.
    """

    look: bool


@dataclass(frozen=True, slots=True)
class LastCheckpoint:
    """Write a checkpoint of the state, if it has checkpoints: this process is about to end.

    Attributes:
        chosen: whether this worker is to write it, where each has all of the state; else it writes its part of it.
    """

    chosen: bool


@dataclass(frozen=True, slots=True)
class Save:
    """Make the state as it is the last commit."""


@dataclass(frozen=True, slots=True)
class Keep:
    """Keep what is small of the state, as at a boundary."""


@dataclass(frozen=True, slots=True)
class Restore:
    """Go back to the last commit, and forget what an interrupted step has accumulated."""


@dataclass(frozen=True, slots=True)
class ReturnToBoundary:
    """Go back to the last boundary, and forget what an interrupted step has accumulated."""


@dataclass(frozen=True, slots=True)
class Forget:
    """Forget the round that is over: what was raised, and what the function returned, keep its group alive."""


@dataclass(frozen=True, slots=True)
class FirstBoundary:
    """Report the round's first boundary, with the times of the way to it."""


@dataclass(frozen=True, slots=True)
class CompareState:
    """Report what is small in the state, to be compared with that of other members at this boundary."""


@dataclass(frozen=True, slots=True)
class Complain:
    """Report that the script continued in a round that is over, and raise that."""

    how: Complaint


Attempt = Build | Adapt | Sync | Train | Settle | CompleteShadows
"""What may raise."""

OfScript = (
    Adapt
    | Sync
    | Train
    | CompleteShadows
    | IsClean
    | WhyTorn
    | UncountedSteps
    | Digest
    | ShardsHeld
    | NewestCheckpoint
    | LastCheckpoint
    | Save
    | Keep
    | Restore
    | ReturnToBoundary
)
"""What concerns the script's function or its state."""

OfWorker = Build | Settle | Stopped | Describe | FirstBoundary | CompareState | Complain
"""What concerns the worker around them."""

Effect = WaitForChange | Say | Forget | OfScript | OfWorker

Answer = Raised | bool | int | str | tuple[HeldShards, ...] | None
