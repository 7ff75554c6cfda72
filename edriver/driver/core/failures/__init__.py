"""What can go wrong in a run, and how often it may. Part of the pure core.

A module answers one question: is a worker suspected, is a slot quarantined, is a budget spent, are replicas equal,
whose exception was it, are steps uneven. It imports what `driver.core` imports.
"""
