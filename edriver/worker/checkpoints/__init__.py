"""Checkpoints of scripts.

`checkpoints.py` writes those of a `TorchState` to disk, beside the training loop. `script_checkpoints.py` is for all
other scripts: in the memory of the run's hosts (`memory`), or on disk (`script_disk.py`). What lies on disk, and which
of it is whole, is `edriver.checkpoint_folder`.
"""
