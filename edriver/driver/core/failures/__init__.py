"""What can go wrong in a run, and how often it may. Part of the pure core.

A module answers one question: is a worker suspected, is a slot quarantined, is a budget spent, are replicas equal,
which failure was the first, are steps uneven. It knows the roster and the round, and nothing of who decides about them.
"""
