"""Python imports this as a process starts that finds it: where that is to be a worker in restart mode, before torch."""

import sys

if "edriver.worker.restart" in sys.orig_argv:
    import tests.torch_stand_ins  # noqa: F401
