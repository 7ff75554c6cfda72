"""The agent: one process per host. It starts and reaps that host's workers and carries messages between them and the
driver. It never imports torch.

Imports `common`, `system`, `text` and `v1`. Start with `agent.py`; `main.py` is its process, `dial_in.py` is
`edriver agent`.
"""
