"""State: what survives a change of workers, and the boundaries at which it is whole.

Start with `state.py`.
"""
