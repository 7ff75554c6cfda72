"""What survives the driver: the events that its core was given, from which another driver of the run continues, and
the names by which runs are found.

It may import the core and what lies below; nothing here decides anything. Start with `journal.py`.
"""
