"""Checkpoints in the memory of the run's hosts: how a worker writes its shard into it, and reads what it needs.

Start with storage.py, the seam of torch.distributed.checkpoint; shard.py is the format of a shard, server_link.py the
way to the checkpoint servers.
"""
