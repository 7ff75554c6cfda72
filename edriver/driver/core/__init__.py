"""The pure core: every decision about a run. `Membership.step(event, now)` returns actions.

No clock, lock, log, await, random number, I/O, or sentence.
Imports `edriver.model`, and nothing else of edriver.
Start with `membership.py`, which says who owns what, then `events.py`, `actions.py`, `round.py` and `round_control.py`.
The layers are in pyproject.toml.
"""
