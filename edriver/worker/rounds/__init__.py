"""The loop of rounds behind `edriver.run`, and the protocol as a worker sees it.

Start with `participant.py` (pure), then `loop.py`.
"""
