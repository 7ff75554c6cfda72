"""Operating system: child processes and what they leave behind, private files, descriptors, folders of runs, ports.

Start with `child.py`; `tether.py` and `guard.py` together leave no process behind, however a run ends.
"""
