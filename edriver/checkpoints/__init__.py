"""Checkpoints on disk as everyone sees them: which there are, which are whole. Without torch.

Start with `folder.py`. What writes and loads them is `edriver.worker.checkpoints`.
"""
