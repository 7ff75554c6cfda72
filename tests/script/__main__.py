"""Write what the core answers now into the cases: `python -m tests.script --rewrite`.

Look at every line that has changed (`git diff tests/script/cases`); only commit if you understand what caused the
change. Without `--rewrite` the changes are shown and nothing is written.
"""

from __future__ import annotations

import argparse
import difflib
import sys

from tests.script.case import CASES
from tests.script.interpreter import rewritten


def main() -> int:
    """Parse the command line and run; returns 1 if a case has changed and is not written."""
    parser = argparse.ArgumentParser(prog="python -m tests.script", description=__doc__)
    parser.add_argument("--rewrite", action="store_true", help="write the changes into the cases")
    options = parser.parse_args()
    changed = 0
    for path in sorted(CASES.glob("*.txt")):
        before = path.read_text()
        after = rewritten(before)
        if after == before:
            continue
        changed += 1
        diff = difflib.unified_diff(before.splitlines(), after.splitlines(), path.name, path.name, lineterm="")
        print("\n".join(diff))
        if options.rewrite:
            path.write_text(after)
    print(f"{changed} cases {'rewritten' if options.rewrite else 'differ'}")
    return 1 if changed and not options.rewrite else 0


if __name__ == "__main__":
    sys.exit(main())
