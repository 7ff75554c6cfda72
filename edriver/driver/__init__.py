"""The driver: one process per run, the only writer of membership.

Start with `core/membership.py` for the decisions and `core_loop.py` for the event loop that feeds it. `session.py` is
one run from start to end, `wiring.py` what it is made of, `shutdown.py` how its agents end. Only `edriver.cli` imports
from here.
"""
