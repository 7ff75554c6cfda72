"""What a run writes to its records folder: the event log and the trace.

Start with `recorder.py`, which owns the one thread that writes.
"""
