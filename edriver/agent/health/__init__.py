"""Whether a worker's process runs, computes or has run out of memory, as the kernel reports it.

Each module stands alone. Start with `unresponsive.py`, which decides when a worker no longer answers.
"""
