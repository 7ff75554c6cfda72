"""A worker in restart mode: it waits for one place in one round, runs a script there that knows nothing of edriver, and
ends with it.

`python -m edriver.worker.restart script.py ...` is what its agent starts; `__main__.py` is the place to start reading.
"""
