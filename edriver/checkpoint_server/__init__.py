"""The checkpoint server: one process per host that holds the checkpoints of the host's workers in shared memory.

Its agent starts it once a worker asks for it. Start with `shards.py`; the protocol is in
proto/edriver/v1/checkpoints.proto.
"""
