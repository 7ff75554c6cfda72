"""Operating system: child processes and what they leave behind, private files, descriptors, folders of runs.

Start with `tether.py` and `guard.py`: together they leave no process behind, however a run ends.
"""
