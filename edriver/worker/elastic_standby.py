"""The process of a standby in elastic mode: `python -m edriver.worker.elastic_standby [-m] SCRIPT ARGUMENT ...`.

It imports what a worker of the script has imported, takes a step with a tiny model, waits to become a worker, and then
runs the script from its beginning, as the interpreter would.

It may become the worker of any slot of its host, each of which has its own GPU, and CUDA reads CUDA_VISIBLE_DEVICES
once. So CUDA must not be initialized before: torch counts GPUs with NVML meanwhile, and a standby in which a library
has initialized CUDA all the same as it was imported ends.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from pathlib import Path

from edriver.common.standby import CUDA_INITIALIZED_CODE, IMPORTS_VARIABLE
from edriver.worker import context
from edriver.worker.restart import standby
from edriver.worker.restart.script import own_traceback, run_script
from edriver.worker.watch.imports import StartEnvironment

NVML_VARIABLE = "PYTORCH_NVML_BASED_CUDA_CHECK"
"""Has torch.cuda.is_available() ask NVML, which does not initialize CUDA (torch's notes on CUDA semantics)."""

CUDA_ERROR_NOT_INITIALIZED = 3
"""What CUDA's driver answers before cuInit (cuda.h)."""


def main() -> None:
    """Wait to become a worker, run the script, and end as it does."""
    words = sys.argv[1:]
    asked = NVML_VARIABLE in os.environ
    os.environ.setdefault(NVML_VARIABLE, "1")
    standby.become_worker(Path(os.environ[IMPORTS_VARIABLE]), _prepare)
    if not asked:
        os.environ.pop(NVML_VARIABLE, None)
    context.current.part(StartEnvironment).variables = dict(os.environ)
    if words[0] != "-m":
        words[0] = os.path.abspath(words[0])  # noqa: PTH100  as the interpreter has it in tracebacks: no link is followed
    try:
        run_script(words)
    except Exception as error:  # noqa: BLE001  shown as the interpreter would
        here = error.__traceback__
        error = error.with_traceback(own_traceback(here.tb_next if here is not None else None))
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__  # as it does, too
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(1)


def _prepare() -> None:
    """What a worker has imported is imported here."""
    _take_first_step()
    if cuda_is_initialized():
        os._exit(CUDA_INITIALIZED_CODE)


@functools.cache
def _take_first_step() -> None:
    from edriver.worker.restart.first_step import take_first_step

    take_first_step()


def cuda_is_initialized() -> bool:
    """Whether this process has initialized CUDA's driver: which GPUs it sees is settled then."""
    try:
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return False  # nothing has loaded it
    return bool(driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) != CUDA_ERROR_NOT_INITIALIZED)


if __name__ == "__main__":
    main()
