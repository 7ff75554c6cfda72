"""What workers and their host use: processors, memory, network and GPUs. Nothing is decided by it.

Start with `sampler.py`. Nothing here runs in the agent's event loop: `sampling.py` has a thread for it.
"""
