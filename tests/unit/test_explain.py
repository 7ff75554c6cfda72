"""`edriver --explain`: nothing is forgotten, and what is shown is what the driver uses."""

from __future__ import annotations

import importlib
import pkgutil
import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest

import edriver.driver
from edriver.cli.explain import DRIVER_BOUNDS, OMITTED_FLAGS, SETTING_NAMES, TABLE_WIDTH, explanation
from edriver.cli.main import main, parser
from edriver.driver.agents import registry
from edriver.driver.config.options import options_of
from edriver.driver.feeds import discovery_feed
from edriver.model.settings import Settings

NO_TIMES = {
    ("edriver.driver.core.failures.consistency", "MAX_ERROR_ROUNDS"),  # rounds
    ("edriver.driver.core.failures.consistency", "MAX_LOCAL_ERROR_ROUNDS"),
    ("edriver.driver.run.wiring", "INBOX_LIMIT"),  # messages
    ("edriver.driver.agents.registry", "STREAM_LIMIT"),
    ("edriver.driver.agents.agent_service", "MAX_MESSAGE_BYTES"),  # bytes
    ("edriver.driver.observe.console.output", "MAX_QUEUED_BYTES"),
    ("edriver.driver.observe.records.recorder", "MAX_QUEUED_BYTES"),
    ("edriver.driver.services.join_configs", "HOST_SPECIFIC_VARIABLES"),  # names
    ("edriver.driver.services.join_configs", "HOST_SPECIFIC_PREFIXES"),
    ("edriver.driver.config.options", "MAX_POLL_TIMEOUT"),  # shown as what becomes of them
    ("edriver.model.settings", "SLOT_COOLDOWN"),
    ("edriver.model.settings", "HOST_COOLDOWN"),
    ("edriver.driver.observe.console.progress_lines", "HOLD_UP_LINE_DELAY"),  # of what is printed
    ("edriver.driver.observe.driver_watch", "LOOK_INTERVAL"),  # nothing depends on it
    ("edriver.driver.observe.progress", "RATE_WINDOW"),  # of a number that is shown, no bound
    ("edriver.driver.services.join_configs", "ADDRESS_HINT_TIMEOUT"),
    ("edriver.driver.observe.records.recorder", "PROGRESS_AGE_FRACTION"),
}
A_TIME = re.compile(r"[A-Z_]*(COOLDOWN|DELAY|GRACE|INTERVAL|LEASE|PERIOD|TIMEOUT|WAIT|WINDOW)\w*")


def explained(line: str) -> dict[str, str]:
    """The lines of an explanation by their first column; the rest as it stands."""
    words = shlex.split(line)
    top = parser()
    text = explanation(top, words, options_of(top.parse_known_args(words)[0]))
    assert max(map(len, text.splitlines())) <= TABLE_WIDTH
    found: dict[str, str] = {}
    name = ""
    for each in text.splitlines():
        whole = len(each) < 39 or each[37] != " "  # a name that is too long for its column stands alone
        left, rest = (each.strip(), "") if whole else (each[:38].strip(), each[38:].strip())
        name = left or name
        found[name] = f"{found.get(name, '') if not left else ''} {rest}".strip()
    return found


def shown(line: str, name: str) -> list[str]:
    """What an explanation says of a setting or bound: its value, its origin."""
    return re.split(r"\s{2,}| (?=(?:flag|default|fixed|derived: .*)$)", explained(line)[name])


@pytest.mark.parametrize("line", ["-np 2 --explain", "-np 2 --explain sh"])
def test_every_flag_is_explained(line: str) -> None:
    lines = explained(line)
    for action in parser()._actions:
        if action.dest not in OMITTED_FLAGS:
            assert re.search(r"(flag|default|derived: from \S+)$", lines[", ".join(action.option_strings)])


def test_every_bound_of_the_driver_is_explained() -> None:
    known = {(bound.module.__name__, bound.name) for bound in DRIVER_BOUNDS} | NO_TIMES
    for module in pkgutil.iter_modules(edriver.driver.__path__, "edriver.driver."):
        source = Path(importlib.util.find_spec(module.name).origin).read_text()  # type: ignore[union-attr, arg-type]
        own = {match[1] for match in re.finditer(r"^([A-Z][A-Z_]*)\b[^=\n]* = ", source, re.MULTILINE)}
        assert not {(module.name, name) for name in own if A_TIME.fullmatch(name)} - known
    flags = set(vars(parser().parse_known_args([])[0]))
    assert {field.name for field in fields(Settings)} == SETTING_NAMES.keys() | {
        field.name for field in fields(Settings) if field.name in flags
    }


def test_what_is_shown_is_what_the_driver_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "AGENT_LEASE", 7.5)
    monkeypatch.setattr(discovery_feed, "POLL_INTERVAL", 0.25)
    assert shown("-np 2 --explain", "an agent may be silent for") == ["7.5 s", "fixed"]
    assert shown("-np 2 --explain", "discovery is polled every") == ["0.25 s", "fixed"]


@pytest.mark.parametrize(
    ("line", "name", "found"),
    [
        pytest.param("-np 2", "--min-np, --min-num-proc", ["2", "derived: from -np"], id="derived"),
        pytest.param("-np 2 --min-np 2", "--min-np, --min-num-proc", ["2", "flag"], id="given-as-it-would-be-anyway"),
        pytest.param("-np 2 --elastic-timeout 600", "--elastic-timeout", ["600", "flag"], id="given-as-the-default"),
        pytest.param("-np 2", "--elastic-timeout", ["600", "default"], id="default"),
        pytest.param("-np 2 sh --elastic-timeout 5", "--elastic-timeout", ["600", "default"], id="the-commands-own"),
        pytest.param("-np 2", "--slots-per-host, --nproc-per-node", ["1", "default"], id="slots"),
        pytest.param("-np 2 --verbose", "--verbose", ["yes", "flag"], id="switch"),
        pytest.param("-np 2 --max-np 3", "-H, --hosts", ["localhost:3", "derived: from --max-np"], id="hosts"),
        pytest.param(
            "-np 2 --start-timeout 3 --host-discovery-script x",
            "the discovery script may take",
            ["2 s", "derived: from --start-timeout"],
            id="short-poll",
        ),
        pytest.param("-np 2", "the discovery script may take", ["20 s", "fixed"], id="long-poll"),
        pytest.param(
            "-np 2 --stall-timeout eval=7200",
            "and then to reach the boundary",
            ["12000 s", "derived: from --stall-timeout"],
            id="a-long-evaluation-is-waited-for",
        ),
        pytest.param(
            "-np 2 --stall-timeout eval=0",
            "and then to reach the boundary",
            ["no limit", "derived: from --stall-timeout"],
            id="one-without-a-limit-for-ever",
        ),
        pytest.param(
            "-np 2 --stall-timeout eval=7200",
            "a collective may take",
            ["10800 s", "derived: from --stall-timeout"],
            id="collective",
        ),
        pytest.param(
            "-np 2 --stall-timeout step=600",
            "a worker may take in phase step",
            ["600 s", "derived: from --stall-timeout"],
            id="phase",
        ),
        pytest.param("-np 2", "cooldown of a host", ["10 to 300 s", "fixed"], id="cooldown"),
        pytest.param("-np 2 --no-records", "--records", ["none", "derived: from --no-records"], id="no-records"),
    ],
)
def test_values_and_origins(line: str, name: str, found: list[str]) -> None:
    before, _, command = line.partition(" sh ")
    assert shown(f"{before} --explain{f' sh {command}' if command else ''}", name) == found


def test_nothing_is_started(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    made = tmp_path / "records"
    assert main(["-np", "1", "--explain", "--records", str(made), "sh", "-c", "exit 3"]) == 0
    assert capsys.readouterr().out.startswith("command: sh -c 'exit 3'\n")
    assert not made.exists()
    assert main(["-np", "1", "--explain"]) == 0
    assert capsys.readouterr().out.startswith("command: none given (a run needs one)\n")


def test_bad_flags_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main(["-np", "2", "--min-np", "3", "--explain"])
    assert refused.value.code == 2
    assert "--min-np is 3" in capsys.readouterr().err


def test_the_number_of_threads_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    value = explained("-np 1 --explain sh")["a worker computes with"]
    assert re.search(r"^1 thread; on a machine with one slot to use, all processors \(\d+ here\) default$", value)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert shown("-np 1 --explain sh", "a worker computes with") == ["3 threads", "derived: from OMP_NUM_THREADS"]


def test_all_slots_are_counted_for_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    monkeypatch.setenv("PET_NPROC_PER_NODE", "gpu")
    assert main(["--max-np", "2", "--explain"]) == 0
    text = capsys.readouterr().out
    assert re.search(r"-np, --num-proc +2 +derived: from the hosts' slots", text)
    assert re.search(r"--slots-per-host, --nproc-per-node +gpu +derived: from PET_NPROC_PER_NODE", text)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        pytest.param("import edriver\nedriver.run\n", ["only with edriver.ShardedState", "default"], id="replicated"),
        pytest.param(
            "import edriver, model\nedriver.run\n",
            ["on: ShardedState in model.py", "derived: from command"],
            id="sharded",
        ),
        pytest.param("import torch\n", ["none", "derived: from restart mode"], id="restart-mode"),
    ],
)
def test_the_seal_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, found: list[str]) -> None:
    (tmp_path / "train.py").write_text(source)
    (tmp_path / "model.py").write_text("from edriver import ShardedState\n")
    monkeypatch.chdir(tmp_path)
    assert shown("-np 2 --explain python train.py", "seal before an optimizer's step") == found
