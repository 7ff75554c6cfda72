"""Python imports this as a process starts that finds it: where that is a worker, its torch pretends to have GPUs."""

import os

if "EDRIVER_WORKER_ID" in os.environ:
    import tests.torch_stand_ins

    # isort: split
    import tests.pretended_cuda  # noqa: F401
