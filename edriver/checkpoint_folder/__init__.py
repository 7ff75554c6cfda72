"""Checkpoints on disk as everyone sees them: which there are, which are whole, whose they are. Without torch.

Start with `folder.py`. What writes and loads them is `edriver.worker.checkpoints`.
"""
