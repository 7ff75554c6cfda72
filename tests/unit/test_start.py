"""An interrupt in the command's first moments is no error."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import edriver

INTERRUPTED_IMPORT = """
import sys
sys.path.insert(0, sys.argv[1])
before = set(sys.modules)
from edriver.cli.start import main
print(sorted(set(sys.modules) - before))

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "argparse":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt())
sys.exit(main())
"""


def test_ctrl_c_while_the_command_is_imported_is_reported_by_the_exit_code_alone() -> None:
    """What is imported before that is caught must be next to nothing: there a traceback is printed."""
    root = str(Path(edriver.__file__).parents[1])
    ended = subprocess.run(
        [sys.executable, "-I", "-S", "-c", INTERRUPTED_IMPORT, root], capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stderr) == (130, "")
    names = ["__future__", "edriver", "edriver.cli", "edriver.cli.start", "edriver.common", "edriver.common.release"]
    assert ended.stdout == f"{names}\n"
