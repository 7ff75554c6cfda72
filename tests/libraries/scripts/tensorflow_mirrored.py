"""TensorFlow's MultiWorkerMirroredStrategy in a loop of its own, with a checkpoint; nothing of edriver."""

import os
from pathlib import Path

import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
rank = strategy.cluster_resolver.task_id
done = Path("done")  # the checkpoint: how many epochs are

with strategy.scope():
    weight = tf.Variable(float(done.read_text()) if done.exists() else 0.0)


@tf.function
def train_epoch():
    """Each worker adds its share of one, and says how many there are."""

    def step():
        context = tf.distribute.get_replica_context()
        size = context.all_reduce("SUM", tf.constant(1.0))
        weight.assign_add(context.all_reduce("SUM", 1.0 / size))
        return size

    return strategy.reduce("MEAN", strategy.run(step), axis=None)


for epoch in range(round(float(weight.numpy())), int(os.environ["EPOCHS"])):
    size = int(train_epoch().numpy())
    if rank == 0:
        Path("doing").write_text(str(float(weight.numpy())))
        Path("doing").replace(done)
    print(f"rank {rank} of {size} pid {os.getpid()} ends epoch {epoch}, weight {weight.numpy():.0f}", flush=True)
print(f"rank {rank} is done", flush=True)
