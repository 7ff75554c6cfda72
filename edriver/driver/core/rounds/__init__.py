"""Rounds: who is in the next one with which rank, what the driver knows of the present one, and when it ends.

Part of the pure core. Start with `round.py` and `ranks.py` (data and rules), then `round_watch.py` (decisions).
"""
