"""Processes that are forked from a server that has imported torch once: one costs milliseconds instead of seconds."""

from __future__ import annotations

import multiprocessing

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    [
        "tests.torch.group_ranks",
        "tests.torch.elastic_world",
        "tests.torch.global_batch_training",
        "tests.torch.sharded_training",
        "torch._dynamo",  # a process group's first use imports it
        "tests.torch.frozen",  # the last
    ]
)
