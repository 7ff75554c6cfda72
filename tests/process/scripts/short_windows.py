"""Runs a driver that judges who is slow by the last few seconds: `python short_windows.py PYTHON -m edriver ...`."""

import runpy
import sys

from edriver.driver.observe.pace import stragglers

stragglers.HALF_SECONDS = 4.0  # type: ignore[misc]
stragglers.Window.__init__.__globals__["HALF_SECONDS"] = 4.0
sys.argv = ["edriver", *sys.argv[4:]]
runpy.run_module("edriver", run_name="__main__")
