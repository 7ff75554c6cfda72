"""One run from its start to its exit code: its parts are made, its loop feeds the core, its agents end with it.

Start with `session.py`; `wiring.py` makes the parts, and `core_loop.py` gives the core one event at a time.
`take_over.py` is how a driver goes on with the run of another.
"""
