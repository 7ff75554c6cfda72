"""Sync: the source of a round sends its state to the receivers the driver named.

Start with `sync.py`.
"""
