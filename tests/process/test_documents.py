"""What the documents promise: the README's script runs as it is printed, and links lead somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.process.running import BOUND, ROOT

DOCUMENTS = sorted(p for p in ROOT.rglob("*.md") if not {".venv", "build", "out"} & set(p.relative_to(ROOT).parts))


def test_the_readmes_script_runs(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(blocks) == 1
    (tmp_path / "train.py").write_text(blocks[0])
    environ = {k: v for k, v in os.environ.items() if not k.startswith("EDRIVER")} | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=BOUND
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "model.pt").exists()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", document.read_text()):
        if not target.startswith("http"):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"
