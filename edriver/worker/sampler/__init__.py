"""The elastic sampler: every sample once per epoch, through any change of workers.

Start with `cursor.py` (pure).
"""
