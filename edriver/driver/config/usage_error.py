"""The error of flags that cannot be used as given."""

from __future__ import annotations


class UsageError(Exception):
    """The flags cannot be used as given; the message is one sentence for the operator."""
