"""The floors of the building: who may import whom, and who may pay for torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import edriver

ROOT = Path(edriver.__file__).parent
SOURCES = {
    ".".join(("edriver", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(ROOT.rglob("*.py"))
}
"""All modules of the package, by name."""

CORE = tuple(
    f"edriver.driver.{name}"
    for name in (
        "actions",
        "blocked",
        "budgets",
        "events",
        "membership",
        "obstacle",
        "quarantine",
        "ranks",
        "roster",
        "round",
        "script_error",
        "selection",
        "settings",
        "soundness",
        "staffing",
        "suspicion",
        "uneven",
        "words",
    )
)
"""The driver's pure core."""

SHARED = (
    "edriver.bounds",
    "edriver.causes",
    "edriver.descriptors",
    "edriver.guard",
    "edriver.invitation",
    "edriver.lease",
    "edriver.leftovers",
    "edriver.link",
    "edriver.message_bounds",
    "edriver.printable",
    "edriver.private_files",
    "edriver.progress",
    "edriver.release",
    "edriver.stall_limits",
    "edriver.start_failure",
    "edriver.tether",
    "edriver.thinned",
    "edriver.version",
    "edriver.wire",
    "edriver.wire_text",
    "edriver.v1",
)
"""What driver and workers have in common."""

FLOORS: dict[str, tuple[str, ...]] = {
    "edriver.v1": ("edriver.v1",),
    "edriver.version": (),
    "edriver.bounds": (),
    "edriver.message_bounds": ("edriver.bounds", "edriver.v1"),
    "edriver.causes": ("edriver.v1",),
    "edriver.history": ("edriver.causes", "edriver.history", "edriver.thinned", "edriver.v1", "edriver.wire"),
    "edriver.records": ("edriver.driver.record_folder", "edriver.v1"),
    "edriver.dashboard": (
        "edriver.causes",
        "edriver.client",
        "edriver.dashboard",
        "edriver.driver.words",
        "edriver.history",
        "edriver.progress",
        "edriver.records",
        "edriver.v1",
    ),
    "edriver.descriptors": (),
    "edriver.guard": ("edriver.guard_main",),
    "edriver.guard_main": (),
    "edriver.invitation": (),
    "edriver.lease": (),
    "edriver.leftovers": ("edriver.guard_main",),
    "edriver.link": (),
    "edriver.printable": (),
    "edriver.private_files": (),
    "edriver.progress": ("edriver.v1",),
    "edriver.release": (),
    "edriver.stall_limits": (),
    "edriver.start_failure": (),
    "edriver.tether": (),
    "edriver.thinned": (),
    "edriver.wire": ("edriver.version", "edriver.v1"),
    "edriver.wire_text": (),
    "edriver.discovery": (
        "edriver.bounds",
        "edriver.discovery",
        "edriver.printable",
        "edriver.start_failure",
        "edriver.tether",
        "edriver.wire_text",
    ),
    "edriver.discovery.hosts": (),
    "edriver.driver": ("edriver.driver", "edriver.discovery", *SHARED),
    **dict.fromkeys(CORE, ("edriver.bounds", "edriver.discovery.hosts", "edriver.version", *CORE)),
    "edriver.worker": ("edriver.worker", *SHARED),
    "edriver.cli": (
        "edriver.driver",
        "edriver.client",
        "edriver.commands",
        "edriver.descriptors",
        "edriver.printable",
        "edriver.release",
        "edriver.stall_limits",
        "edriver.worker.agent_main",
        "edriver.worker.dial_in",
    ),
    "edriver.client": ("edriver.client", "edriver.driver.runs", "edriver.invitation", "edriver.v1"),
    "edriver.commands.explain": ("edriver.driver", "edriver.stall_limits"),
    "edriver.commands": (
        "edriver.bounds",
        "edriver.client",
        "edriver.commands",
        "edriver.dashboard",
        "edriver.driver.event_log",
        "edriver.driver.words",
        "edriver.printable",
        "edriver.private_files",
        "edriver.progress",
        "edriver.records",
        "edriver.wire",
        "edriver.wire_text",
        "edriver.v1",
    ),
    "edriver.__main__": ("edriver.start",),
    "edriver.start": ("edriver.cli",),
    "edriver": ("edriver.worker", "edriver.release"),
}
"""What a module may import of edriver, by the longest prefix of its name."""

OUTSIDE_WORLD = {
    *("asyncio", "concurrent", "grpc", "io", "logging", "multiprocessing", "os", "pathlib", "queue", "random"),
    *("secrets", "select", "shutil", "socket", "subprocess", "tempfile", "threading", "time", "uuid"),
}
"""What the core does without: clocks, chance, locks, logs, files, processes, sockets."""

USES_TORCH = {
    f"edriver.worker.{name}"
    for name in (
        "buffer_copies",
        "group",
        "handlers",
        "nccl",
        "packing",
        "peer_loss",
        "permutation",
        "proven_pairs",
        "relay",
        "sampler",
        "side_stream",
        "snapshot",
        "step_watch",
        "store",
        "sync",
        "torch_state",
        "warm_up",
    )
}
"""The worker's torch parts. Everything else would make drivers and agents 2 s slower and 200 MB larger."""

LONGEST = 500


def imported(module: str, at_module_level: bool = False) -> Iterator[str]:
    """The names that a module imports; of `from a import b` both a.b and, if that is no module, a."""
    body: list[ast.AST] = [ast.parse(SOURCES[module].read_text())]
    while body:
        node = body.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            whole = node.module or ""
            for alias in node.names:
                inner = f"{whole}.{alias.name}"
                yield inner if inner in SOURCES else whole
        elif not (at_module_level and is_deferred(node)):
            body += ast.iter_child_nodes(node)


def is_deferred(node: ast.AST) -> bool:
    """Whether what a statement contains does not run when its module is imported."""
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        return True
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)


def lies_in(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def floor_of(module: str) -> str:
    return max((prefix for prefix in FLOORS if lies_in(module, prefix)), key=len)


@pytest.mark.parametrize("module", SOURCES)
def test_a_module_imports_only_from_the_floors_below(module: str) -> None:
    allowed = FLOORS[floor_of(module)]
    of_ours = {name for name in imported(module) if lies_in(name, "edriver")}
    assert not {name for name in of_ours if not any(lies_in(name, package) for package in allowed)}


def test_every_core_module_is_there() -> None:
    assert set(CORE) <= SOURCES.keys()


@pytest.mark.parametrize("module", CORE)
def test_the_core_does_not_touch_the_outside_world(module: str) -> None:
    assert not {name.split(".")[0] for name in imported(module)} & OUTSIDE_WORLD


def test_only_the_workers_torch_parts_import_torch() -> None:
    users = {m for m in SOURCES if any(lies_in(name, "torch") for name in imported(m, at_module_level=True))}
    assert users == USES_TORCH


@pytest.mark.parametrize(
    "modules",
    [
        pytest.param(["edriver"], id="the-package"),
        pytest.param([m for m in SOURCES if lies_in(m, "edriver.driver") or m == "edriver.cli"], id="the-driver"),
        pytest.param(["edriver.worker.agent", "edriver.worker.agent_main"], id="the-agent"),
    ],
)
def test_driver_and_agent_run_without_torch(modules: list[str]) -> None:
    program = f"import sys, {', '.join(modules)}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0


LOADS_PROMETHEUS = {f"edriver.driver.{name}" for name in ("gauges", "metrics", "metrics_server")}
"""What a driver without --metrics-port does without."""


def test_only_who_asks_for_metrics_loads_prometheus_client() -> None:
    users = {m for m in SOURCES if any(lies_in(name, "prometheus_client") for name in imported(m))}
    assert users == LOADS_PROMETHEUS
    at_once = {module for module in SOURCES if LOADS_PROMETHEUS & {*imported(module, at_module_level=True)}}
    assert at_once <= LOADS_PROMETHEUS | {"edriver.commands.explain"}  # which starts no run


UNPICKLES = {"edriver.worker.sync", "edriver.worker.small_copy"}
"""Modules that may: what a member of the round has sent over torch's own connections, and nothing at all."""


@pytest.mark.parametrize("module", SOURCES)
def test_what_comes_from_outside_is_never_run(module: str) -> None:
    of_others = {"pickle", "cloudpickle", "marshal", "shelve", "dill"} if module not in UNPICKLES else set()
    assert not {name.split(".")[0] for name in imported(module)} & of_others
    for node in ast.walk(ast.parse(SOURCES[module].read_text())):
        if isinstance(node, ast.Call):
            assert not (isinstance(node.func, ast.Name) and node.func.id in ("eval", "exec", "compile", "__import__"))
            assert not any(keyword.arg == "shell" for keyword in node.keywords)


def test_no_import_is_relative() -> None:
    nodes = ((module, node) for module, path in SOURCES.items() for node in ast.walk(ast.parse(path.read_text())))
    assert not [module for module, node in nodes if isinstance(node, ast.ImportFrom) and node.level]


@pytest.mark.parametrize("module", [m for m in SOURCES if not lies_in(m, "edriver.v1")])
def test_no_file_is_too_long(module: str) -> None:
    assert len(SOURCES[module].read_text().splitlines()) <= LONGEST
