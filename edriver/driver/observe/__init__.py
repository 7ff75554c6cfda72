"""What a run shows of itself. Nothing here decides anything.

Start with `event_history.py`: every observer reads from it. Of the driver's rooms it imports
`core` alone.
"""
