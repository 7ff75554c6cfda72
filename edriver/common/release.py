"""Which edriver this is, and which others it works with.

The driver, the agents and the workers of a run may be of different releases: another driver may take over a run that an
older one began. They need the same PROTOCOL.

An agent names it to the driver (`Hello`), and to its workers (`Attached`). It stays the same while fields and messages
are only added, which proto3 ignores where they are not known. Another number is refused, with a sentence.
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
"""
