"""The loop of rounds behind `edriver.run`, and the protocol as a worker sees it.

Start with `participant.py`, which is pure; `training_thread.py` carries out what the loop asks for, and
`run.py` is the way in.
"""
