"""Who holds a round up: what its members spend their steps on, and who is waited for where none is made. It decides
nothing. Start with `members.py`; the two verdicts, `hold_up.py` and `stragglers.py`, are pure.
"""
