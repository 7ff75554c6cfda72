"""The agent: one process per host. It starts and reaps that host's workers and carries messages between them and the
driver. It never imports torch.

Imports `common`, `system`, `text` and `v1`. Start with `agent.py`: what an agent is made of, and when it ends.
`control_stream.py` is its stream to the driver; `host_workers.py` does what the driver orders for the host's workers,
`worker.py` is one of them, `worker_settings.py` what they are started with; `main.py` is the agent's process,
`dial_in.py` is `edriver agent`.
"""
