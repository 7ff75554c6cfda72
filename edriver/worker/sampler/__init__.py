"""The elastic sampler and the elastic stream: every sample once per epoch, through any change of workers.

Start with `cursor.py` (pure); of the stream, with `stream_shards.py`, `stream_plan.py` and `stream_block.py`.
"""
