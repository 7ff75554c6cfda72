"""A Slurm cluster of its own: real munged, slurmctld and one slurmd a node, all on this machine, in a temporary folder.

Nothing of a Slurm that may be installed for use on this machine is touched: the cluster has its own configuration, key,
sockets and ports. Everything of it carries SLURM_CONF in its environment, by which what is left behind is found.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import random
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from tests.needs import SLURM, require
from tests.waiting import until

NODES = 4
"""Without GPUs."""

CPUS = 4
"""Of each node: more than this machine may have, as nothing is bound to a processor."""

BOUND = 240.0
"""Seconds that a test waits for Slurm to do something; only a failing test ever waits so long."""

DEVICES = ("/dev/null", "/dev/zero")
GPUS = {"gpu1": 2, "gpu2": 1}
"""What Slurm takes for GPUs, and how many of them further nodes have: it counts them, and opens none."""

SLURMD_TIMEOUT = 10
"""Seconds after which a node that does not answer is DOWN."""

CONFIGURATION = """\
ClusterName=edriver-test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={control_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdPidFile={folder}/%n.pid
SlurmdSpoolDir={folder}/%n
SlurmdLogFile={folder}/%n.log
SlurmdTimeout={slurmd_timeout}
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
GresTypes=gpu
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,bf_interval=1,preempt_send_user_signal
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=120
OverTimeLimit=0
ReturnToService=2
{nodes}
PartitionName=main Nodes=node[1-4] Default=YES MaxTime=INFINITE PriorityTier=5 PreemptMode=OFF
PartitionName=spare Nodes=node[1-4] MaxTime=INFINITE PriorityTier=1 PreemptMode=REQUEUE GraceTime=20
PartitionName=spot Nodes=node[1-4] MaxTime=INFINITE PriorityTier=1 PreemptMode=CANCEL GraceTime=20
PartitionName=rough Nodes=node[1-4] MaxTime=INFINITE PriorityTier=1 PreemptMode=REQUEUE
PartitionName=urgent Nodes=node[1-4] MaxTime=INFINITE PriorityTier=9 PreemptMode=OFF
PartitionName=gpu Nodes=gpu[1-2] MaxTime=INFINITE
"""
"""`spare` and `spot` are preempted by `urgent`, with 20 s of grace; `rough` without any."""


class Cluster:
    """A cluster of four nodes, node1 to node4, and two with GPUs in a partition of their own.

    Args:
        folder: for all its files; short, for a socket lies in it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.configuration = folder / "slurm.conf"
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def environ(self) -> dict[str, str]:
        """What makes Slurm's commands speak to this cluster."""
        return {"SLURM_CONF": str(self.configuration)}

    def start(self) -> None:
        """Start the daemons; returns when all nodes are idle."""
        (self.folder / "munge").mkdir(mode=0o755)
        (self.folder / "state").mkdir(mode=0o700)
        key = self.folder / "munge" / "key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(1024))
        control_port, *ports = _free_ports(len(self.nodes) + 1)
        host = socket.gethostname()
        nodes = "\n".join(
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={CPUS} RealMemory=1000"
            + (f" Gres=gpu:{GPUS[name]}" if name in GPUS else "")
            for name, port in zip(self.nodes, ports, strict=True)
        )
        gres = [f"NodeName={name} Name=gpu File={file}\n" for name, count in GPUS.items() for file in DEVICES[:count]]
        (self.folder / "gres.conf").write_text("".join(["AutoDetect=off\n", *gres]))
        text = CONFIGURATION.format(
            host=host,
            control_port=control_port,
            user=pwd.getpwuid(os.getuid()).pw_name,
            folder=self.folder,
            slurmd_timeout=SLURMD_TIMEOUT,
            nodes=nodes,
        )
        self.configuration.write_text(text)
        files = {name: self.folder / "munge" / name for name in ("socket", "pid", "log", "seed")}
        self._start(
            "munged",
            *("munged", "--foreground", "--force", "--key-file", str(key), "--socket", str(files["socket"])),
            *("--pid-file", str(files["pid"]), "--log-file", str(files["log"]), "--seed-file", str(files["seed"])),
        )
        self.wait(files["socket"].exists, "munged opens its socket")
        self.start_controller()
        for name in self.nodes:
            self.start_node(name)
        self.wait(lambda: set(self.states().values()) == {"idle"}, "all nodes are idle")

    @property
    def nodes(self) -> list[str]:
        """The names of all nodes."""
        return [*(f"node{number}" for number in range(1, NODES + 1)), *GPUS]

    def start_controller(self) -> None:
        """Start slurmctld."""
        self._start("slurmctld", "slurmctld", "-D", "-f", str(self.configuration))

    def start_node(self, name: str) -> None:
        """Start the slurmd of a node."""
        (self.folder / name).mkdir(exist_ok=True)
        self._start(name, "slurmd", "-D", "-N", name, "-f", str(self.configuration))

    def stop(self, daemon: str) -> None:
        """End a daemon: slurmctld, munged, or the slurmd of a node. What slurmd has started goes on."""
        process = self._daemons.pop(daemon)
        process.terminate()
        process.wait(BOUND)

    def lose_node(self, name: str) -> None:
        """As if the power of this node failed: its slurmd and all that it has started are killed at once."""
        slurmd = self._daemons.pop(name)
        for pid in [slurmd.pid, *self.step_processes(name)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        slurmd.wait(BOUND)

    def tasks(self, name: str) -> list[int]:
        """What the steps on a node have started."""
        mark = f"SLURMD_NODENAME={name}"
        return [pid for pid, (_, environ) in self._processes().items() if mark in environ.split("\n")]

    def step_processes(self, name: str) -> list[int]:
        """The processes that Slurm runs on a node: what its steps have started, and the slurmstepds above."""
        processes = self._processes()
        tasks = self.tasks(name)
        above = {_parent(pid) for pid in tasks}
        return [pid for pid in above if pid and processes.get(pid, ("", ""))[0].startswith("slurmstepd")] + tasks

    def command(self, *words: str, folder: Path | None = None, environ: Mapping[str, str] | None = None) -> str:
        """Run one of Slurm's commands; returns what it prints."""
        everything = {**os.environ, **self.environ, **(environ or {})}
        done = subprocess.run(words, cwd=folder, env=everything, capture_output=True, text=True, timeout=BOUND)
        assert done.returncode == 0, f"{words} ended with {done.returncode}: {done.stderr}{done.stdout}"
        return done.stdout.strip()

    def states(self) -> dict[str, str]:
        """The state of each node, as sinfo has it."""
        with contextlib.suppress(AssertionError):  # slurmctld does not listen yet
            lines = self.command("sinfo", "--Node", "--noheader", "--format=%N|%T").splitlines()
            return dict(line.split("|") for line in lines)
        return {}

    def jobs(self, fmt: str = "%i|%j|%T|%N") -> list[str]:
        """The jobs that pend, run or end."""
        return self.command("squeue", "--noheader", f"--format={fmt}").splitlines()

    def steps(self, job: str) -> list[str]:
        """The steps that run of a job, by name."""
        return self.command("squeue", "--steps", "--noheader", "--format=%j", f"--jobs={job}").splitlines()

    def quiet(self) -> bool:
        """Whether no job is there any more, and no process of one."""
        return not self.jobs() and not self.left_behind()

    def left_behind(self) -> list[str]:
        """Processes of this cluster that are none of its daemons: jobs, steps, commands."""
        return [f"{pid}: {command}" for pid, command in self._jobs_processes().items()]

    def wait(self, holds: Callable[[], bool], what: str, seconds: float = BOUND) -> None:
        """Wait until something holds."""
        until(holds, lambda: f"{what}\n{self.account()}", bound=seconds)

    def account(self) -> str:
        """What a failing test should show of the cluster."""
        logs = [self.folder / f"{name}.log" for name in ("slurmctld", *self.nodes)]
        lines = [line for log in logs if log.exists() for line in (str(log), *log.read_text().splitlines()[-25:])]
        return "\n".join([*map(str, self.left_behind()), *lines])

    def clear(self) -> None:
        """Cancel all jobs, have all nodes in service; returns when nothing runs."""
        if "slurmctld" not in self._daemons:
            self.start_controller()
        for name in self.nodes:
            if name not in self._daemons:
                self.start_node(name)
        self.wait(lambda: set(self.states()) == set(self.nodes), "slurmctld answers")
        for job in self.jobs("%A"):
            with contextlib.suppress(AssertionError):  # it has just ended
                self.command("scancel", job)
        self.wait(self._all_idle, "all nodes are idle")

    def _all_idle(self) -> bool:
        states = self.states()
        for name, state in states.items():
            if "drain" in state:  # one that is down comes back by itself, once its slurmd answers
                with contextlib.suppress(AssertionError):  # it has just changed
                    self.command("scontrol", "update", f"NodeName={name}", "State=RESUME")
        return set(states.values()) == {"idle"} and self.quiet()

    def end(self) -> None:
        """End everything, by process id."""
        try:
            if "slurmctld" in self._daemons and self.states():
                self.clear()
        finally:
            for pid in self._jobs_processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for daemon in [name for name in self._daemons if name != "munged"]:
                self.stop(daemon)
            if "munged" in self._daemons:
                self.stop("munged")

    def _start(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.out").open("ab") as output:
            self._daemons[name] = subprocess.Popen(
                command,
                cwd=self.folder,
                env={**os.environ, **self.environ},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def _jobs_processes(self) -> dict[int, str]:
        """The command of each process that is no daemon, nor a daemon's helper (slurmscriptd)."""
        own = {daemon.pid for daemon in self._daemons.values()}
        processes = self._processes().items()
        return {pid: command for pid, (command, _) in processes if pid not in own and _parent(pid) not in own}

    def _processes(self) -> dict[int, tuple[str, str]]:
        """The command and environment of each process of this cluster."""
        found = {}
        mark = f"SLURM_CONF={self.configuration}"
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                environ = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
                command = (entry / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
                if mark in environ and int(entry.name) != os.getpid():
                    found[int(entry.name)] = (command, "\n".join(environ))
        return found


@contextlib.contextmanager
def cluster() -> Iterator[Cluster]:
    """A cluster that is ended with the block."""
    require(SLURM)
    folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
    folder.chmod(0o755)  # munged wants to be reached by all
    made = Cluster(folder)
    try:
        made.start()
        yield made
    finally:
        made.end()
        shutil.rmtree(folder)


def _free_ports(count: int) -> list[int]:
    """Ports that nothing listens on, all different.

    None of those that the kernel gives out: another process would get that of a slurmd while it is stopped.
    """
    first_given_out = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    found: list[int] = []
    with contextlib.ExitStack() as stack:
        for port in random.sample(range(10_000, first_given_out), 1000):
            with contextlib.suppress(OSError):
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
                found.append(port)
            if len(found) == count:
                return found
    raise AssertionError(f"there are no {count} free ports")


def _parent(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0
