"""Slurm: the nodes of an allocation as hosts, with agents as its steps; and jobs that bring agents to a run.

`commands.py` runs Slurm's commands, `answers.py` reads what they print and what Slurm sets in the environment, without
any I/O. Inside an allocation, `allocation.py` is the source of hosts and `steps.py` the launcher; both ask
`node_gpus.py`. Outside, `broker.py` has jobs in the queue: `jobs.py` decides which, without any I/O, and
`submission.py` has their commands. All are reached by entry points.
"""
