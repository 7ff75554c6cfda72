"""The agent: one process per host. It starts and reaps that host's workers and carries messages between them and the
driver. It never imports torch.

Imports `common`, `system`, `text` and `v1`. Start with `agent.py`: what the driver's messages mean, and when the agent
ends. `host_workers.py` has all workers of the host, `worker.py` is one of them, `terms.py` what they are started with;
`main.py` is the agent's process, `dial_in.py` is `edriver agent`.
"""
