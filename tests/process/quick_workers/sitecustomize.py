"""Python imports this as a process starts that finds it: where that is to be a worker in restart mode, a standby, a
worker of `edriver.launch` or of a benchmark that is tested here, torchrun's agent, or the script that a shell starts in
a test, before torch."""

import atexit
import gc
import sys

WORKERS = {"edriver.worker.restart", "edriver.worker.elastic_standby", "edriver.worker.called"}
BENCHMARKS = {"benchmarks.gpu.job", "benchmarks.gpu.horovod_job"}

if (WORKERS | BENCHMARKS | {"torch.distributed.run"}) & {*sys.orig_argv} or sys.orig_argv[1:2] == ["plain.py"]:
    import tests.torch_stand_ins  # noqa: F401

    gc.set_threshold(100_000)  # else it looks through what is being imported again and again
    atexit.register(gc.freeze)  # and through all of it as the interpreter ends
