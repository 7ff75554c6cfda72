"""The rooms of the package and of its tests: what `lint-imports` does not check. Its contracts: pyproject.toml."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import edriver

ROOT = Path(edriver.__file__).parent
SOURCES = {
    ".".join(("edriver", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(ROOT.rglob("*.py"))
    if "v1" not in path.relative_to(ROOT).parts
}
"""All modules of the package that are written by hand, by name."""

FOLDERS = sorted({path.parent for path in SOURCES.values()})


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(ROOT.parent)))
def test_a_folder_says_what_lives_in_it(folder: Path) -> None:
    assert ast.get_docstring(ast.parse((folder / "__init__.py").read_text()))


@pytest.mark.parametrize("room", ["driver", "worker", "discovery"])
def test_the_front_door_shows_the_rooms(room: str) -> None:
    link = ROOT.parent / room
    assert link.is_symlink()
    assert link.readlink() == Path("edriver", room)


RAYS_CLIENT = {f"edriver.driver.engines.ray.{module}" for module in ("bridge", "metrics")}
"""What runs in a process of its own, and imports Ray, which is an extra."""


@pytest.mark.parametrize(
    "modules",
    [
        pytest.param(["edriver"], id="the-package"),
        pytest.param([m for m in SOURCES if m.startswith("edriver.driver") and m not in RAYS_CLIENT], id="the-driver"),
        pytest.param(["edriver.cli.main"], id="the-command-line"),
        pytest.param([m for m in SOURCES if m.startswith("edriver.agent")], id="the-agent"),
    ],
)
def test_driver_and_agent_run_without_torch(modules: list[str]) -> None:
    """Torch would make each of them 2 s slower and 200 MB larger."""
    program = f"import sys, {', '.join(modules)}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0


def test_a_driver_without_metrics_does_not_load_prometheus_client() -> None:
    program = "import sys, edriver.cli.main, edriver.driver.run.session; sys.exit('prometheus_client' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0


@pytest.mark.parametrize("module", SOURCES)
def test_what_comes_from_outside_is_never_run(module: str) -> None:
    for node in ast.walk(ast.parse(SOURCES[module].read_text())):
        if isinstance(node, ast.Call):
            assert not (isinstance(node.func, ast.Name) and node.func.id in ("eval", "exec", "compile", "__import__"))
            assert not any(keyword.arg == "shell" for keyword in node.keywords)


IMPORT = re.compile(r"^ *(?:from [\w.]+ import (?:\([^)]*\)|.*)|import .*)", re.MULTILINE)


@pytest.mark.parametrize("folder", ["tests", "benchmarks"])
def test_no_test_module_is_imported(folder: str) -> None:
    """What several need lives in a helper module, or in a conftest.py."""
    paths = sorted((ROOT.parent / folder).rglob("*.py"))
    assert paths
    for path in paths:
        imports = IMPORT.findall(path.read_text())
        assert [line for line in imports if re.search(r"\btest_\w+", line)] == [], path


@pytest.mark.parametrize(("walk", "at_most"), [("A host line", 18), ("The death of a worker", 25)])
def test_a_walk_is_as_the_architecture_says(walk: str, at_most: int) -> None:
    docs = ROOT.parent / "docs"
    section = (docs / "architecture.md").read_text().partition(f"\n### {walk}\n")[2].partition("\n### ")[0]
    stations = re.findall(r"^\| \[`.+?`\]\((.+?)\) \| (.+) \|$", section, re.MULTILINE)
    files = [(docs / link).resolve() for link, _ in stations]
    assert 10 < len(files) == len(set(files)) <= at_most
    for file, (_, text) in zip(files, stations, strict=True):
        source = file.read_text()
        assert [name for name in re.findall(r"`(\w+)`", text) if name not in source] == [], file
