"""Kubernetes: a driver's pod and agents' pods that dial in.

`command.py` is `edriver kubernetes manifest`, which prints what to apply: `plan.py` has what was asked for, `pods.py`
and `workloads.py` the pods and what starts them, `access.py` what they may do and who reaches them, `manifest.py` puts
them together. All of that is data: dicts that a YAML library writes.
"""
