"""Which edriver this is, and which others it works with.

The driver, the agents and the workers of a run may be of different releases: another driver may take over a run that an
older one began. They need the same PROTOCOL.

An agent names it to the driver (`Hello`), and to its workers (`Attached`). It stays the same while fields and messages
are only added, which proto3 ignores where they are not known. Another number is refused, with a sentence: the driver
refuses the agent, the worker its agent. So all members of a round have the same one, whichever releases they are of,
and it covers what they have among themselves, too.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as in __init__.py
if TYPE_CHECKING:
    from typing import Final

VERSION: Final = "0.1.0"

PROTOCOL: Final = 1
"""The protocol between driver, agents and workers; whoever opens a connection names it, and another is refused.

It grows only when old and new cannot work together. New fields, and new kinds of messages that the other side may leave
unread, do not change it: proto3 ignores what it does not know, and what is missing has its default.

It grows as well when the members of a round must have something alike that has changed: the requests of the round's
store, the proof of connections, the collectives of warm-up and sync, the stream of a sync, the agreements of Horovod's
collectives; and what each member works out by itself, such as the order of samples and who reads which shard.
tests/torch/test_members_agree.py has what of that can be recorded.
"""
