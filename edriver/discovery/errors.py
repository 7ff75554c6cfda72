"""Errors of host sources."""

from __future__ import annotations


class DiscoveryError(Exception):
    """A host source gave no usable answer. The message states in one line what is wrong and what to do."""


class UnusableSourceError(DiscoveryError):
    """A host source that cannot work until it is changed: its script does not exist, or cannot be run."""
