"""What a plain `pip install edriver` can do, and what a command says whose extra is missing."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import edriver
from tests.waiting import BOUND

ROOT = Path(edriver.__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NOT_FOR_USERS = {"bench", "dev", "docs", "examples", "libraries", "test"}

MODULES = {
    "top": ("textual",),
    "metrics": ("prometheus_client",),
    "completion": ("shtab",),
    "dashboard": ("aiohttp", "plotly"),
    "etcd": ("aetcd",),
    "gpu": ("pynvml",),
    "kubernetes": ("kubernetes", "yaml", "prometheus_client"),
    "ray": ("ray",),
    "tensorboard": ("tensorboard",),
}
"""What each extra installs, as it is imported."""

PAGES = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "examples" / "README.md"]

WITHOUT = "import sys; sys.modules.update(dict.fromkeys({missing!r}.split()))\n"
"""Python in which these modules cannot be imported."""

EDRIVER = "from edriver.cli.main import main; sys.exit(main(sys.argv[1:]))"


def ended(missing: str, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT.format(missing=missing) + program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=BOUND, check=False)


@pytest.mark.parametrize(
    ("missing", "line", "sentence"),
    [
        pytest.param(
            "prometheus_client",
            "-np 1 --metrics-port 0 true",
            "edriver: --metrics-port needs prometheus-client: pip install 'edriver[metrics]' (see edriver --help)",
            id="metrics",
        ),
        pytest.param(
            "wandb",
            "-np 1 --report-to wandb true",
            "edriver: --report-to wandb needs wandb on this machine: pip install wandb (see edriver --help)",
            id="wandb",
        ),
        pytest.param(
            "shtab",
            "--print-completion bash",
            "edriver: --print-completion needs shtab: pip install 'edriver[completion]' (see edriver --help)",
            id="completion",
        ),
        pytest.param(
            "aiohttp",
            "dashboard",
            "edriver: edriver dashboard needs aiohttp: pip install 'edriver[dashboard]'",
            id="dashboard",
        ),
    ],
)
def test_a_command_names_the_extra_that_it_lacks(missing: str, line: str, sentence: str) -> None:
    found = ended(missing, EDRIVER, *line.split())
    assert found.returncode in (1, 2)
    assert found.stderr.splitlines() == [sentence]


def test_top_names_the_extra_that_it_lacks() -> None:
    program = "sys.stdout.isatty = lambda: True\n" + EDRIVER
    assert ended("textual", program, "top").stderr == "edriver: edriver top needs textual: pip install 'edriver[top]'\n"


@pytest.mark.parametrize("word", ["top", "dashboard", "export", "report"])
def test_help_needs_no_extra(word: str) -> None:
    found = ended(" ".join(module for modules in MODULES.values() for module in modules), EDRIVER, word, "--help")
    assert (found.returncode, found.stderr) == (0, "")


def test_driver_agent_and_worker_need_no_extra() -> None:
    """Nor does any part of them: what an extra provides is imported by a module that only its flag needs."""
    with_extras = (
        "edriver.cli.completion",
        "edriver.driver.engines.kubernetes",
        "edriver.driver.engines.ray",
        "edriver.driver.observe.metrics",
    )
    rooms = ("agent", "calls", "checkpoints", "cli", "client", "common", "discovery", "driver", "system", "worker")
    modules = [
        ".".join(("edriver", *path.relative_to(ROOT / "edriver").with_suffix("").parts)).removesuffix(".__init__")
        for room in rooms
        for path in sorted((ROOT / "edriver" / room).rglob("*.py"))
    ]
    plain = [each for each in modules if not each.startswith(with_extras)]
    assert len(plain) > 300
    everything = " ".join(module for modules in MODULES.values() for module in modules)
    found = ended(everything, f"import {', '.join(plain)}")
    assert (found.returncode, found.stderr) == (0, "")


def test_each_extra_of_which_edriver_speaks_is_there() -> None:
    pages = [*PAGES, *(ROOT / "edriver").rglob("*.py")]
    texts = [path.read_text() for path in pages]
    extras = re.compile(r"(?:edriver|['\"]\.)\[([\w,]+)\]")
    named = {name for text in texts for found in extras.findall(text) for name in found.split(",")}
    assert named <= PROJECT["optional-dependencies"].keys()
    assert PROJECT["optional-dependencies"].keys() - NOT_FOR_USERS == MODULES.keys()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_install_from_a_checkout(page: Path) -> None:
    """No index has edriver. What edriver prints is for those who have installed it: pip then knows its extras."""
    by_hand = re.sub(r"<!-- table.*?<!-- end -->", "", page.read_text(), flags=re.DOTALL)
    assert re.findall(r"pip install ['\"]?edriver.*", by_hand) == []


@pytest.mark.parametrize("extra", MODULES)
def test_a_plain_install_has_nothing_of_an_extra(extra: str) -> None:
    def names(requirements: list[str]) -> set[str]:
        return {re.split(r"[<>=!\[]", each)[0] for each in requirements}

    assert not names(PROJECT["dependencies"]) & names(PROJECT["optional-dependencies"][extra]) - {"edriver"}


def test_the_generated_code_runs_with_the_oldest_and_the_newest_that_are_allowed() -> None:
    """grpcio may not be older than the code; protobuf's is good for its own major version and the next one."""
    allowed = {re.split(r"[<>=]", each)[0]: re.findall(r"[\d.]+", each) for each in PROJECT["dependencies"]}
    ends = {name: [tuple(map(int, end.split("."))) for end in found if end != "."] for name, found in allowed.items()}
    for path in sorted((ROOT / "edriver" / "v1").glob("*_pb2.py")):
        (written,) = re.findall(r"# Protobuf Python Version: ([\d.]+)", path.read_text())
        version = tuple(map(int, written.split(".")))
        assert version <= ends["protobuf"][0], f"{path.name} was generated for protobuf {written}"
        assert ends["protobuf"][1] <= (version[0] + 2,)
        (grpc_written,) = re.findall(
            r"GENERATED_VERSION = '([\d.]+)'", path.with_name(f"{path.stem}_grpc.py").read_text()
        )
        assert tuple(map(int, grpc_written.split("."))) <= ends["grpcio"][0], f"for grpcio {grpc_written}"
