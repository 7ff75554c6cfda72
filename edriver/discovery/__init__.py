"""Discovery: where hosts come from, and which set of hosts is in force.

Imports `common`, `system` and `text`. Start with `hosts.py`; a source implements `HostSource` in `sources.py`.
"""
