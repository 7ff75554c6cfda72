"""A rendezvous for torchrun: `torchrun --rdzv-backend=edriver --rdzv-endpoint=HOST:PORT`.

`server` is `edriver rendezvous`, which never imports torch: start with server/run_state.py. `torchrun` is what torch
loads in each agent of torchrun: start with torchrun/backend.py. The two share the protocol alone
(proto/edriver/v1/rendezvous.proto), in which torch's state is data: no pickle leaves a process.
"""
