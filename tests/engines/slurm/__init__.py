"""Runs under Slurm: real munged, slurmctld and slurmd. `cluster.py` makes a cluster; start there."""
