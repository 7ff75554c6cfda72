"""What a run shows of itself. Nothing here decides anything.

Start with `event_history.py`: every observer reads from it. Imports `driver.core`, not `driver.rpc` or
`driver.launch`.
"""
