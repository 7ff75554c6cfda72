"""Checkpoints on disk: written beside the training loop, and loaded where no worker holds the state any more.

Start with `checkpoints.py`. Where they lie, and which are whole, is `edriver.checkpoint_folder`.
"""
