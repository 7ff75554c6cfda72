"""What the documents promise: what they print runs as it is printed, and links lead somewhere."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from edriver.cli.main import parser
from edriver.driver.config.options import options_of
from tests.process.dashboards import dashboard
from tests.process.running import BOUND, ROOT, edriver, running

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CPU = "https://download.pytorch.org/whl/cpu"
USED = ("examples", "top", "dashboard")
"""The extras that the tutorial uses: its script, `edriver top`, and `edriver dashboard` and `report`."""

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


SHARDED = """
from torch import nn
from torch.utils.data import DataLoader

dataset = torch.randn(64, 4)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def batches(state):
    return DataLoader(dataset, 8, sampler=state.sampler)


def loss_of(y):
    return y.square().mean()

"""
"""What the script of the page on sharded models leaves to its reader."""


def test_the_script_of_the_page_on_sharded_models_runs(tmp_path: Path) -> None:
    text = (ROOT / "docs/how-to/sharded-models.md").read_text()
    script, *_parts = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    imports, rest = script.split("\n\n\n", 1)
    (tmp_path / "train.py").write_text(f"{imports}\n{SHARDED}{rest}print(state.scheduler.last_epoch)\n")
    environ = {k: v for k, v in os.environ.items() if not k.startswith("EDRIVER")} | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=BOUND
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "8\n"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", document.read_text()):
        if not target.startswith("http"):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


def command_lines() -> Iterator[tuple[str, str]]:
    """The command lines that start a run, by document, but for usages, and what needs a package or a Slurm."""
    for document in DOCUMENTS:
        text = re.sub(r"\\\n\s*", " ", document.read_text())
        for line in re.findall(r"^ {0,4}(?:\$ |exec )?((?:[A-Z_]+=\S+ )*edriver -[^|\n]*)", text, re.MULTILINE):
            if not re.search(r" -np .*--(broker|launcher) | --slurm |\[options\]", line) and " -np " in line:
                yield document.name, line.strip()


@pytest.mark.parametrize(("document", "line"), [*command_lines()])
def test_a_command_line_is_one_that_edriver_takes(
    document: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")  # as in an active environment
    script = "import edriver\n" if document != "from-torchrun.md" else ""
    (tmp_path / "train.py").write_text(script)
    for library in ("wandb", "mlflow"):  # --report-to looks whether they are installed
        (tmp_path / "libraries" / library).mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path / "libraries")
    for name in ("discover_hosts.sh", "hosts.sh"):
        (tmp_path / name).write_text("#!/bin/sh\necho localhost:2\n")
        (tmp_path / name).chmod(0o755)
    words = [os.path.expanduser(word) for word in shlex.split(line)]  # noqa: PTH111  as the shell does
    flags, unknown = parser().parse_known_args(words[words.index("edriver") + 1 :])
    assert not unknown
    options = options_of(flags)
    assert options.command[0].endswith("python")
    assert (options.mode.mode.value == "restart") == (document == "from-torchrun.md" or "--mode restart" in line)


@pytest.mark.long
def test_the_tutorial_is_as_it_says(tmp_path: Path) -> None:
    """Its commands as they are printed, with a hosts file and a copy of the example that belong to this test."""
    tutorial = (ROOT / "docs" / "tutorial.md").read_text()
    blocks = re.findall(r"```sh\n(.*?)\n```", tutorial, re.DOTALL)
    install, start, kill, add, look, stop, report = blocks
    torch = next(each for each in PROJECT["dependencies"] if each.startswith("torch"))
    assert install.splitlines()[2:] == [
        f"pip install '{torch}' --index-url {CPU}",
        f"pip install '.[{','.join(USED)}]'",
    ]
    assert set(USED) <= PROJECT["optional-dependencies"].keys()
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    hosts = tmp_path / "hosts.txt"
    quoted = shlex.quote(str(hosts))
    enter, write, name, run_line = re.sub(r"\\\n\s*", " ", start).replace("/tmp/hosts.txt", quoted).split("\n")
    assert (enter, name) == ("cd examples/digits", f"export EDRIVER_HOSTS={quoted}")
    subprocess.run(write, shell=True, check=True)
    program, *flags = shlex.split(run_line)
    assert program == "edriver"
    flags[flags.index("python")] = sys.executable
    state = {"XDG_STATE_HOME": str(tmp_path / "state")}
    environ = {**state, "EDRIVER_HOSTS": str(hosts)}
    with running(flags, tmp_path / "examples" / "digits", environ) as run:
        victim = run.line(r"^\[3\]<stdout>:rank 3 of 4 is process (\d+)$")[1]
        run.line(r"edriver: \S+ and \S+ are both this machine")
        run.line(r"^\[0\]<stdout>:epoch 0 loss")
        assert kill.splitlines()[1] == "kill -9 PID"
        os.kill(int(victim), signal.SIGKILL)
        going_on = run.line(r"rank 0 of 3 is process (\d+)$")
        assert going_on[1] == run.line(r"rank 0 of 4 is process (\d+)$")[1], "the same process"
        subprocess.run(add.replace("/tmp/hosts.txt", quoted), shell=True, check=True)
        run.line(r"rank 5 of 6 is process")
        hosts.write_text(hosts.read_text().replace("127.0.0.3:2\n", ""))
        at = next(place for place, line in enumerate(run.lines) if "of 6 is process" in line)
        run.line(r"rank 3 of 4 is process", after=at)
        shown = [line.split("#")[0].strip() for line in look.splitlines()]
        assert shown == ["edriver status", "edriver top", "edriver dashboard"]
        assert "elastic mode: round" in edriver("status", "--run", run.id, environ=state).stdout
        with dashboard(run.id, tmp_path / "state", control=False) as url, urlopen(url, timeout=BOUND) as page:
            assert page.status == 200
        assert (stop, report) == ("edriver stop", "edriver report RUN_ID")
        assert edriver("stop", "--run", run.id, environ=state).returncode == 0
        assert run.end() == 128 + signal.SIGTERM, run.text
        written = edriver("report", run.id, "--output", str(tmp_path / "page.html"), environ=state)
        assert written.stdout.splitlines()[-1] == str(tmp_path / "page.html")
        assert run.gone()
