"""The training job of train.py, on a system where a process does not find its Gloo connections."""

import tests.quick_start  # noqa: F401  before torch

# isort: split
import runpy
from pathlib import Path

from edriver.worker.backend.gloo import sever

setattr(sever, "_FDINFO_FOLDER", Path("/nowhere"))  # noqa: B010
runpy.run_path(str(Path(__file__).with_name("train.py")), run_name="__main__")
