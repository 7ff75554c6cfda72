"""The process group of a round: its store, its construction, and the proof that each connection leads to a member.

Start with `round_group.py`.
"""
