"""The engines that own machines and give them out: one package each, imported only when the run asks for it.

An engine has a source of hosts (`edriver.discovery`), a launcher of agents, or both, named by entry points in
pyproject.toml; the rest of the driver knows none of them. It may import `edriver.discovery`, the seam in
`edriver.driver.launch`, and what lies below; no engine imports another. Start with `slurm/allocation.py`, which finds
the nodes of an allocation, and `slurm/steps.py`, which starts agents on them.
"""
