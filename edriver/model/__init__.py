"""The model: one type for each fact that several parts share. Plain data; imports nothing of edriver.

Start with `events.py` (what happens), `actions.py` (what is to be done) and `cause.py` (why); `records.py` has the
states of a worker.
"""
