from __future__ import annotations

import asyncio
import math
import shlex
import sys
from pathlib import Path

import pytest

from edriver.cli.main import parser
from edriver.discovery.script import HostDiscoveryScript
from edriver.driver.agents.dial_in_hosts import DialInHosts
from edriver.driver.config import options
from edriver.driver.config.options import RunOptions, options_of, takes_all_slots
from edriver.driver.config.usage_error import UsageError
from edriver.driver.launch.launcher import LaunchContext
from edriver.driver.launch.ssh import SshLauncher
from edriver.model.limits import MAX_TOTAL_SLOTS
from edriver.model.mode import Mode
from edriver.model.settings import WHOLE_HOSTS, Settings
from edriver.model.worker_logs import StreamChoice, Streams, WorkerLogs

LOGS = "-np 1 --mode restart"
A_PY = f"{shlex.quote(sys.executable)} a.py"


def read(line: str) -> RunOptions:
    flags, unknown = parser().parse_known_args(shlex.split(line))
    assert not unknown
    return options_of(flags)


def hosts_of(options: RunOptions) -> list[str]:
    return [str(host) for host in asyncio.run(options.source.find())]


@pytest.mark.parametrize(
    ("line", "settings"),
    [
        pytest.param("-np 4 sh", Settings(4, 4, 4), id="min-and-max-default-to-np"),
        pytest.param("--num-proc 4 --min-num-proc 2 --max-num-proc 8 sh", Settings(4, 2, 8), id="long-names"),
        pytest.param("-np 4 --min-np 2 --max-np 8 sh", Settings(4, 2, 8), id="short-names"),
        pytest.param("-np 4 -H a:8 sh", Settings(4, 4, 4), id="fixed-hosts"),
        pytest.param("-np 4 --host-discovery-script sh sh", Settings(4, 4, MAX_TOTAL_SLOTS), id="as-many-as-there-are"),
        pytest.param("-np 4 --hosts-dial-in --credentials c sh", Settings(4, 4, MAX_TOTAL_SLOTS), id="dial-in"),
        pytest.param(
            "-np 1 --start-timeout 5 --elastic-timeout 60.5 --reset-limit 3 --cooldown-range 1 10 sh",
            Settings(1, 1, 1, start_timeout=5.0, elastic_timeout=60.5, reset_limit=3, cooldown_range=(1.0, 10.0)),
            id="times-and-limits",
        ),
        pytest.param(
            "-np 1 --reset-limit 3 --reset-window 3600 sh",
            Settings(1, 1, 1, reset_limit=3, reset_window=3600.0),
            id="limit-with-a-window",
        ),
        pytest.param(
            "-np 1 --blacklist-cooldown-range 2 4 sh", Settings(1, 1, 1, cooldown_range=(2.0, 4.0)), id="horovods-name"
        ),
        pytest.param(
            "-np 4 --replica-size 2 --host-discovery-script sh sh",
            Settings(4, 4, MAX_TOTAL_SLOTS, replica_size=2),
            id="replicas-elastic",
        ),
        pytest.param(
            "-np 4 --replica-size 2 --mode restart --host-discovery-script sh sh",
            Settings(4, 4, MAX_TOTAL_SLOTS, mode=Mode.RESTART, replica_size=2),
            id="replicas",
        ),
        pytest.param(
            "-np 4 --min-np 3 --replica-size Host --mode restart sh",
            Settings(4, 3, 4, mode=Mode.RESTART, replica_size=WHOLE_HOSTS),
            id="a-replica-on-each-host",
        ),
    ],
)
def test_settings(line: str, settings: Settings) -> None:
    assert read(line).settings == settings


def test_the_agreed_boundary_may_take_as_long_as_each_phase_once() -> None:
    assert read("-np 1 --stall-timeout eval=10000 --stall-timeout step=0.5 sh").settings.boundary_timeout == 14200.5
    assert read("-np 1 --stall-timeout eval=0 sh").settings.boundary_timeout == math.inf


@pytest.mark.parametrize(
    ("line", "command"),
    [
        pytest.param(
            "-np 1 sh -c 'echo -np 2' --verbose", ("sh", "-c", "echo -np 2", "--verbose"), id="flags-of-its-own"
        ),
        pytest.param("-np 1 -- sh -x", ("sh", "-x"), id="after-two-dashes"),
        pytest.param("-np 1 sh -- -x", ("sh", "--", "-x"), id="two-dashes-of-its-own"),
    ],
)
def test_command_is_everything_after_the_flags(line: str, command: tuple[str, ...]) -> None:
    options = read(line)
    assert options.command == command
    assert not options.verbose


@pytest.mark.parametrize(
    ("line", "hosts"),
    [
        pytest.param("-np 2 --max-np 3 sh", ["localhost:3"], id="none-is-this-machine"),
        pytest.param("-np 2 -H a:1,b:4 sh", ["a:1", "b:4"], id="list"),
        pytest.param("-np 2 --hosts a,b --slots-per-host 2 sh", ["a:2", "b:2"], id="slots-per-host"),
    ],
)
def test_hosts(line: str, hosts: list[str]) -> None:
    assert hosts_of(read(line)) == hosts


@pytest.mark.parametrize(
    ("line", "hosts"),
    [
        pytest.param("-np auto sh", ["localhost:auto"], id="this-machine"),
        pytest.param("--nproc-per-node gpu sh", ["localhost:gpu"], id="torchruns-flag"),
        pytest.param("--slots-per-host 3 sh", ["localhost:3"], id="a-number-of-slots"),
        pytest.param("-np auto --slots-per-host cpu -H a,b:2 sh", ["a:cpu", "b:2"], id="default-of-a-list"),
        pytest.param("-np 8 -H a:gpu sh", ["a:gpu"], id="as-many-as-there-will-be"),
        pytest.param("-np 2 --slots-per-host gpu sh", ["localhost:2"], id="np-wins-on-this-machine"),
    ],
)
def test_slots_that_are_still_to_be_counted(line: str, hosts: list[str]) -> None:
    assert hosts_of(read(line)) == hosts


@pytest.mark.parametrize(
    ("line", "found"),
    [
        pytest.param("-np auto sh", True, id="auto"),
        pytest.param("-np auto --slots-per-host 2 sh", True, id="both"),
        pytest.param("--slots-per-host 2 sh", True, id="slots-without-np"),
        pytest.param("-np 4 --slots-per-host gpu sh", False, id="number"),
        pytest.param("-np 4 -np auto sh", False, id="what-it-came-to"),
    ],
)
def test_whether_all_slots_are_taken(line: str, found: bool) -> None:
    assert takes_all_slots(parser().parse_known_args(line.split())[0]) is found


@pytest.mark.parametrize(
    ("line", "mode", "worker"),
    [
        pytest.param("--no-python sh x", Mode.RESTART, "{python} -P -m edriver.worker.restart -- sh x", id="no-python"),
        pytest.param("--mode restart sh", Mode.RESTART, "{python} -P -m edriver.worker.restart -- sh", id="restart"),
        pytest.param("--no-python --mode elastic sh x", Mode.ELASTIC, "sh x", id="elastic"),
        pytest.param("sh x", Mode.ELASTIC, "sh x", id="not-said"),
        pytest.param("-m pkg.a 1", Mode.RESTART, "{python} -m edriver.worker.restart -m pkg.a 1", id="module"),
        pytest.param("--no-python {python} a.py", Mode.RESTART, "{python} -m edriver.worker.restart a.py", id="python"),
    ],
)
def test_what_a_worker_runs(
    line: str, mode: Mode, worker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pkg").mkdir()
    for name in ("pkg/a.py", "a.py"):
        (tmp_path / name).write_text("import torch\n")
    monkeypatch.chdir(tmp_path)
    options = read(f"-np 1 {line}".format(python=shlex.quote(sys.executable)))
    assert options.mode.mode is mode
    assert " ".join(options.worker_command) == worker.format(python=sys.executable)


@pytest.mark.parametrize(
    ("text", "mode", "line", "command"),
    [
        pytest.param("", 0o644, "train.py --lr 1", (sys.executable, "train.py", "--lr", "1"), id="a script"),
        pytest.param("", 0o644, "./train.py", (sys.executable, "./train.py"), id="with a folder"),
        pytest.param("", 0o755, "./train.py", (sys.executable, "./train.py"), id="executable, without an interpreter"),
        pytest.param("#!/usr/bin/python3", 0o644, "./train.py", (sys.executable, "./train.py"), id="not executable"),
        pytest.param("#!/usr/bin/python3", 0o755, "./train.py", ("./train.py",), id="executable"),
        pytest.param("", 0o755, "--no-python ./train.py", ("./train.py",), id="said not to be Python"),
    ],
)
def test_this_python_runs_a_script_that_cannot_be_executed(
    text: str, mode: int, line: str, command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text(text)
    (tmp_path / "train.py").chmod(mode)
    monkeypatch.chdir(tmp_path)
    options = read(f"-np 1 {line}")
    assert options.command == command
    assert options.mode.mode is Mode.RESTART


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        pytest.param("", "", id="none"),
        pytest.param("--name 'warm up'", "warm up", id="name"),
        pytest.param("--run nightly", "nightly", id="run"),
        pytest.param("--run nightly --name nightly", "nightly", id="twice the same"),
        pytest.param("--run supervised-1f2e3d4c --name warm-up", "warm-up", id="supervised"),
    ],
)
def test_a_run_has_one_name(flags: str, name: str) -> None:
    assert read(f"-np 1 {flags} sh").name == name


def test_a_variable_of_torchrun_is_named_where_it_cannot_be_used() -> None:
    flags, _ = parser({"PET_TEE": "3"}).parse_known_args(["-np", "1", "sh"])
    with pytest.raises(UsageError, match=r"^PET_TEE is for restart mode"):
        options_of(flags)


def test_hosts_of_a_named_source(tmp_path: Path) -> None:
    assert hosts_of(read("-np 2 --discovery list=a,b --slots-per-host 2 sh")) == ["a:2", "b:2"]
    (tmp_path / "hosts").write_text("a:2\n")
    assert hosts_of(read(f"-np 2 --discovery hostfile={shlex.quote(str(tmp_path / 'hosts'))} sh")) == ["a:2"]
    assert isinstance(read("-np 2 --discovery script=./hosts.sh sh").source, HostDiscoveryScript)


def test_a_named_launcher() -> None:
    assert read("-np 1 sh").launcher is None
    make = read("-np 1 --launcher ssh sh").launcher
    assert make is not None
    assert isinstance(make(LaunchContext("0a1b2c3d", ssh_port=2222)), SshLauncher)


def test_which_runs_can_be_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "plugin", lambda *asked: asked)
    assert read("-np 1 sh").resumable
    assert read("-np 2 --hosts-dial-in --credentials f --broker farm sh").resumable
    assert not read("-np 1 --no-journal sh").resumable
    assert not read("-np 1 --launcher ray sh").resumable


def test_a_broker_asks_for_no_more_than_np_unless_there_is_a_maximum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "plugin", lambda *asked: asked)
    words = "--hosts-dial-in --credentials f --slots-per-host 4 --broker farm=green,blue sh"
    judged = read(f"-np 2 {words}")
    assert judged.broker is not None
    assert judged.broker._asdict() == {
        "make": ("edriver.brokers", "farm"),
        "argument": "green,blue",
        "slots_per_host": 4,
        "idle_timeout": 30.0,
    }
    assert judged.settings.max_np == 2
    assert read(f"-np 2 --max-np 9 {words}").settings.max_np == 9


def test_slurms_partition_is_a_broker_and_hosts_that_dial_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    judged = read("-np 2 --slots-per-host 2 --slurm-partition gpu --slurm-args=--time=10 sh")
    assert judged.broker is not None
    assert judged.broker.argument == "gpu --time=10"
    assert judged.settings.max_np == 2
    assert judged.dial_in is not None
    assert judged.dial_in.parent == tmp_path / "edriver"
    assert isinstance(judged.source, DialInHosts)


@pytest.mark.parametrize("flag", ["--hostfile", "-hostfile"])
def test_hostfile(flag: str, tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("a:2\nb\n")
    assert hosts_of(read(f"-np 2 {flag} {shlex.quote(str(file))} --slots-per-host 3 sh")) == ["a:2", "b:3"]


def test_discovery_script_is_not_looked_at_yet() -> None:
    assert isinstance(read("-np 2 --host-discovery-script ./missing.sh sh").source, HostDiscoveryScript)


def test_torchruns_flags_about_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert read(f"{LOGS} {A_PY}").logs is None
    assert read(f"{LOGS} --tee 3 {A_PY}").logs == WorkerLogs(tee=StreamChoice(Streams.BOTH))
    line = f"{LOGS} --log-dir d --redirects 1:2 --tee 0:3 --local-ranks-filter 0,2 {A_PY}"
    assert read(line).logs == WorkerLogs(
        str(tmp_path / "d"),
        StreamChoice(by_local_rank={1: Streams.STDERR}),
        StreamChoice(by_local_rank={0: Streams.BOTH}),
        (0, 2),
    )


def test_output_folder_is_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert read("-np 1 --output-filename logs/run sh").output_folder == str(tmp_path / "logs" / "run")
    assert read("-np 1 sh").output_folder == ""


@pytest.mark.parametrize(
    ("line", "where"),
    [
        pytest.param("-np 1 sh", None, id="nowhere"),
        pytest.param("-np 1 --metrics-port 9400 sh", ("127.0.0.1", 9400), id="for-this-machine"),
        pytest.param("-np 1 --metrics-port 0 --metrics-address 0.0.0.0 sh", ("0.0.0.0", 0), id="for-others"),
    ],
)
def test_where_metrics_are(line: str, where: tuple[str, int] | None) -> None:
    assert read(line).metrics == where


@pytest.mark.parametrize(
    ("line", "message"),
    [
        pytest.param("sh", "-np is missing: give the number of workers", id="no-np"),
        pytest.param("-np 0 sh", "-np is 0: a run needs at least one worker", id="np-zero"),
        pytest.param("-np -1 sh", "-np is -1", id="np-negative"),
        pytest.param("-np 2 --min-np 3 sh", "--min-np is 3: it must lie between 1 and -np (2)", id="min-above-np"),
        pytest.param("-np 2 --max-np 1 sh", "--max-np is 1: it must not be below -np (2)", id="max-below-np"),
        pytest.param("-np 2 --start-timeout 0 sh", "--start-timeout is 0", id="no-time"),
        pytest.param("-np 2 --reset-limit -1 sh", "--reset-limit is -1", id="reset-limit"),
        pytest.param("-np 2 --copy-environment tmp sh", "--copy-environment is 'tmp': it must be an", id="copy"),
        pytest.param("-np 2 --standby-workers -1 sh", "--standby-workers is -1: it must be 0", id="standby-workers"),
        pytest.param("-np 2 --cooldown-range 5 1 sh", "--blacklist-cooldown-range is 5 1", id="cooldown-order"),
        pytest.param("-np 2 --slots-per-host 0 sh", "--slots-per-host is 0: a host has 1 to 4096 slots", id="slots"),
        pytest.param("-np 2 --slots-per-host 4097 sh", "--slots-per-host is 4097: a host has 1", id="many-slots"),
        pytest.param("-np 65537 sh", "-np is 65537: a run has at most 65536 workers", id="np-bound"),
        pytest.param("-np 2 --max-np 65537 sh", "--max-np is 65537: a run has at most 65536", id="max-np-bound"),
        pytest.param("-np 4097 sh", "--max-np on this machine alone is 4097: a host has 1 to 4096", id="local-np"),
        pytest.param("-np 2 -H a:29500 sh", "is 29500 a port?", id="host-slots"),
        pytest.param("-np 2", "the command is missing", id="no-command"),
        pytest.param("-np 2 --", "the command is missing", id="no-command-after-dashes"),
        pytest.param("-np 2 no-such-program-here", "there is no command 'no-such-program-here' on PATH", id="program"),
        pytest.param("-np 2 python0 train.py", f"its path, for example {shlex.quote(sys.executable)}", id="python"),
        pytest.param("-np 2 --run a --name b sh", "--run a and --name b give the run two names", id="names"),
        pytest.param("-np 2 nosuch.py", "there is no file 'nosuch.py' to run", id="script"),
        pytest.param("-np 2 ./no/such", "there is no file './no/such' to run", id="program-file"),
        pytest.param("-np 2 /etc/passwd", "'/etc/passwd' is not an executable file: chmod +x it", id="not-executable"),
        pytest.param("-np 2 sh x\udcff", "'x\\udcff' in the command is not valid UTF-8: rename", id="command-in-bytes"),
        pytest.param("-np 2 -H a:2 --hostfile f sh", "-H and --hostfile both define the hosts", id="two-sources"),
        pytest.param("-np 1 -H a --discovery list=a sh", "-H and --discovery both define the hosts", id="two-ways"),
        pytest.param("-np 1 --discovery no sh", "--discovery: 'no' is not installed, only hostfile", id="no-discovery"),
        pytest.param("-np 1 --discovery list=a:x sh", "--discovery list: item 1", id="bad-argument"),
        pytest.param("-np 1 --idle-timeout 5 sh", "--idle-timeout is for hosts that a cluster gives", id="idle"),
        pytest.param("-np 1 --resize-pause -1 sh", "--resize-pause is -1: it must not be negative", id="pause"),
        pytest.param("-np 1 --slurm -H a sh", "--slurm and -H both define where", id="slurm-and-hosts"),
        pytest.param("-np 1 --slurm-partition p --broker b sh", "both define where", id="slurm-and-broker"),
        pytest.param("-np 1 --slurm sh", "--slurm: this is not a Slurm allocation", id="no-allocation"),
        pytest.param("-np 1 --slurm-args x sh", "give --slurm-partition, too", id="no-partition"),
        pytest.param('-np 1 --slurm-partition p --slurm-args "\'" sh', "--slurm-args: No closing", id="quotes"),
        pytest.param("-np 1 --broker no sh", "--broker: 'no' is not installed, only ", id="broker"),
        pytest.param("-np 1 --launcher no sh", "--launcher: 'no' is not installed, only dial-in, ", id="launcher"),
        pytest.param("-np 1 --launcher dial-in sh", "give --hosts-dial-in, too", id="launcher-dial-in"),
        pytest.param(
            "-np 1 --hosts-dial-in --credentials f --launcher ssh sh", "leave out --launcher ssh", id="dial-in-by-ssh"
        ),
        pytest.param("-np 1 -H a:zero sh", "-H 'a:zero': item 1", id="bad-host-list"),
        pytest.param(
            "-np 4 -H a:2 sh",
            "; the run needs 4 slots (--min-np, by default -np): add slots, or give --min-np 2",
            id="too-few-slots",
        ),
        pytest.param("-np 1 --hostfile /no/such sh", "hostfile '/no/such' cannot be read", id="no-hostfile"),
        pytest.param("-np 1 --metrics-port 65536 sh", "--metrics-port is 65536: ports lie between", id="metrics-port"),
        pytest.param("-np 1 --metrics-address ::1 sh", "--metrics-address needs --metrics-port", id="metrics"),
        pytest.param("-np 1 --metrics-port 0 --metrics-address '' sh", "--metrics-address is empty", id="no-address"),
        pytest.param("-np 1 --report-to comet sh", "--report-to 'comet': give wandb or mlflow", id="report-to"),
        pytest.param("-np 1 --port 65536 sh", "--port is 65536: ports lie between 1 and 65535", id="port"),
        pytest.param("-np 1 --hosts-dial-in sh", "--hosts-dial-in needs --credentials FILE", id="dial-in-alone"),
        pytest.param("-np 1 --credentials f sh", "--credentials is for hosts that dial in", id="no-dial-in"),
        pytest.param(
            "-np 1 --status-credentials /no/such/f sh",
            "--status-credentials '/no/such/f' cannot be written: give a file in an existing folder",
            id="status-credentials",
        ),
        pytest.param(
            "-np 1 --output-filename /dev/null sh", "--output-filename '/dev/null' is not a folder", id="output"
        ),
        pytest.param("--slots-per-host 2 --ray auto sh", "-np is missing: give a number", id="auto-of-a-cluster"),
        pytest.param(
            "-np auto --hosts-dial-in --credentials c sh", "the number of slots of these hosts is", id="auto-of-dial-in"
        ),
        pytest.param(
            "-np 1 --slots-per-host gpu --discovery list=a sh", "--slots-per-host gpu: only hosts of -H", id="gpu"
        ),
        pytest.param("-np 1 -m --no-python sh", "--module and --no-python exclude each other", id="module-no-python"),
        pytest.param("-np 1 --mode restart env torchrun a.py", "torchrun starts processes itself", id="launcher-again"),
        pytest.param("-np 1 --tee 3 sh", "--tee is for restart mode, in which a worker has one", id="tee-elastic"),
        pytest.param("-np 1 --log-dir d sh", "--log-dir is for restart mode", id="log-dir-elastic"),
        pytest.param(
            "-np 2 --replica-size host sh",
            "--replica-size host is for scripts in restart mode",
            id="whole-hosts-elastic",
        ),
        pytest.param(f"{LOGS} --log-dir /dev/null {A_PY}", "--log-dir '/dev/null' is not a folder", id="log-dir"),
        pytest.param(f"{LOGS} -r 4 {A_PY}", "--redirects: '4' is neither 0 (no stream), 1 (st", id="redirects"),
        pytest.param(f"{LOGS} -t 0:3,1 {A_PY}", "--tee: '0:3,1' is neither", id="tee"),
        pytest.param(f"{LOGS} --local-ranks-filter 0;1 {A_PY}", "--local-ranks-filter: '0;1' is not a l", id="filter"),
        pytest.param(
            f"{LOGS} --output-filename d --tee 3 {A_PY}",
            "--output-filename and --tee both define",
            id="two-outputs",
        ),
    ],
)
def test_what_cannot_work_is_refused_with_a_sentence(line: str, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        read(line)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        pytest.param("-np 1 sh -c 'x y'", "1 worker of sh -c 'x y'", id="one"),
        pytest.param("-np 2 --min-np 1 --max-np 4 sh", "2 workers (at least 1, at most 4) of sh", id="elastic"),
        pytest.param(
            "-np 2 --host-discovery-script sh sh", "2 workers (at least 2, as many as there are) of sh", id="unbounded"
        ),
        pytest.param("-np 2 sh", "2 workers of sh", id="fixed"),
    ],
)
def test_the_runs_first_line(line: str, text: str) -> None:
    assert str(read(line)) == text
