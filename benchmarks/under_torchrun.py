"""A run under torchrun, with one agent a host, all on this machine."""

from __future__ import annotations

import signal
import sys

from benchmarks.jobs import Job, Workload, free_port


class TorchrunJob(Job):
    """A run under torchrun.

    Args:
        workload: what to train.
        workers: how many workers each agent has: 4 for one agent, whose restarts need no rendezvous with others, or 2
            for one or two agents, of which one is enough to go on.
    """

    def __init__(self, workload: Workload, workers: int) -> None:
        super().__init__(workload)
        self._workers = workers
        self._shape = ["--nnodes", "1:2" if workers == 2 else "1", "--nproc-per-node", str(workers)]
        self._endpoint = f"127.0.0.1:{free_port()}"

    def launch(self, size: int) -> None:
        """Start as many agents as that takes; the first one also holds the rendezvous."""
        for _ in range(size // self._workers):
            self._start_agent()

    def resize(self, size: int) -> None:
        """Start a second agent, or ask the one that was started last to go."""
        if size == 4:
            self._start_agent()
        else:
            self._started[-1].send_signal(signal.SIGTERM)

    def _start_agent(self) -> None:
        first = not self._started
        # All in torchrun's favour: by default it would wait 30 s for more agents, and 15 s for one that is gone.
        conf = f"is_host={int(first)},last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3"
        rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", self._endpoint, "--rdzv-id", "churn"]
        rendezvous += ["--rdzv-conf", conf, "--local-addr", "127.0.0.1", "--max-restarts", "100"]
        command = [sys.executable, "-m", "torch.distributed.run", *self._shape, *rendezvous]
        job = ["-m", "benchmarks.torchrun_job", *self.workload.flags(self.folder)]
        # Without the first of these its restarts hang on Gloo in torch 2.13; the others edriver sets by itself.
        settings = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        self._start([*command, *job], settings)
