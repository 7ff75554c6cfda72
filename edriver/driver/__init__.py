"""The driver: one process per run, the only writer of membership.

Start with `core/membership.py` for the decisions and `session.py` for the event loop that feeds it. Only `edriver.cli`
imports from here.
"""
