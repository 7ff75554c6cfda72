"""The churn workload under Ray Train: torchrun's job, checkpoints and all, in the workers of a TorchTrainer.

All of Ray Train's settings are its own defaults, but that failures are not limited. The checkpoint is a file that all
workers see, which costs less than to report it to Ray Train.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

from benchmarks.workload import options


def train_loop(config: dict[str, Any]) -> None:
    """What each worker does."""
    import ray

    from benchmarks.torchrun_job import train

    os.environ["GROUP_RANK"] = ray.get_runtime_context().get_node_id()
    train(argparse.Namespace(**config))


def main() -> None:
    """The whole script."""
    flags = options()

    import ray
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    variables = {name: os.environ[name] for name in ("PYTHONPATH", "OMP_NUM_THREADS")}
    ray.init(runtime_env={"env_vars": variables})
    trainer = TorchTrainer(
        train_loop,
        train_loop_config=vars(flags),
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=(2, 4)),
        run_config=RunConfig(storage_path=str(flags.folder / "ray"), failure_config=FailureConfig(max_failures=-1)),
    )
    trainer.fit()


if __name__ == "__main__":
    main()
