"""The collectives: `negotiation.py` is what comes before each of them, `handles.py` what comes after.

`reductions.py` combines tensors, `movements.py` moves them, `objects.py` moves Python objects, and `joining.py` is for
members that have no data left. Each is an operation (`operations.py`): its caller carries it out, or, where nobody
waits for it, `background.py` does. `arguments.py` looks at what a script has given.
"""
