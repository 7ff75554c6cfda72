"""Slurm: the nodes of an allocation as hosts, and agents as its steps.

`commands.py` runs Slurm's commands, `answers.py` reads what they print and what Slurm sets in the environment, without
any I/O; `allocation.py` is the source of hosts, `steps.py` the launcher.
"""
