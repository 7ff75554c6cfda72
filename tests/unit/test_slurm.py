"""Slurm's answers, the nodes of an allocation, and agents as steps, with stand-ins for Slurm's commands."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Mapping, Sequence

import pytest

from edriver.discovery.errors import DiscoveryError, UnusableSourceError
from edriver.driver.engines.slurm.allocation import ASK_INTERVAL, LEAVING, Allocation
from edriver.driver.engines.slurm.answers import (
    FAILED_STATES,
    LEAVING_STATES,
    counts_of,
    gpus_of,
    nodes_of,
    slots_by_node,
    states_of_nodes,
)
from edriver.driver.engines.slurm.commands import SlurmError, run_command
from edriver.driver.engines.slurm.node_gpus import NodeGpus
from edriver.driver.engines.slurm.steps import StepLauncher, step_command, step_environment
from edriver.driver.launch.launcher import Bootstrap
from edriver.system.child import Child
from tests.slurm_answers import Answers


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        pytest.param("2(x3),1", [2, 2, 2, 1], id="mixed"),
        pytest.param("4", [4], id="one"),
        pytest.param("", [], id="nothing"),
        pytest.param("2(x", [], id="broken"),
        pytest.param("many", [], id="no-number"),
    ],
)
def test_counts(text: str, counts: list[int]) -> None:
    assert counts_of(text) == counts


@pytest.mark.parametrize(
    ("environment", "slots"),
    [
        pytest.param(
            {"SLURM_GPUS_ON_NODE": "8", "SLURM_NTASKS": "2", "SLURM_TASKS_PER_NODE": "1(x2)"}, [8, 8], id="gpus"
        ),
        pytest.param(
            {"SLURM_GPUS_ON_NODE": "0", "SLURM_NTASKS": "3", "SLURM_TASKS_PER_NODE": "2,1"}, [2, 1], id="tasks"
        ),
        pytest.param({"SLURM_NTASKS_PER_NODE": "4", "SLURM_TASKS_PER_NODE": "4(x2)"}, [4, 4], id="tasks-per-node"),
        pytest.param({"SLURM_TASKS_PER_NODE": "64(x2)"}, [5, 5], id="processors-are-no-tasks"),
        pytest.param({"SLURM_NTASKS": "1", "SLURM_TASKS_PER_NODE": "1"}, [5, 5], id="another-number-of-nodes"),
    ],
)
def test_slots(environment: dict[str, str], slots: list[int]) -> None:
    assert list(slots_by_node(environment, ["a", "b"], 5, {}).values()) == slots


DETAILS = """\
JobId=8 ArrayJobId=7 ArrayTaskId=1 JobName=train
   JOB_GRES=gpu:9
     Nodes=other CPU_IDs=0 Mem=0 GRES=gpu:9(IDX:0-8)

JobId=7 ArrayJobId=7 ArrayTaskId=0 JobName=train
   JOB_GRES=gpu:a100:3,shard:4
     Nodes=node[1-2] CPU_IDs=0-3 Mem=0 GRES=shard:4(0/8),gpu:a100:1(IDX:0)
     Nodes=node3 CPU_IDs=0 Mem=0 GRES=gpu:v100:1(IDX:0),gpu:a100:2(IDX:1-2)
     Nodes=node4 CPU_IDs=0 Mem=0 GRES=
   MinCPUsNode=1
"""


def test_gpus_by_node() -> None:
    assert gpus_of(DETAILS, "7") == [("node[1-2]", 1), ("node3", 3)]
    assert gpus_of(DETAILS, "9") == gpus_of("", "7") == []
    environment = {"SLURM_GPUS_ON_NODE": "2", "SLURM_NTASKS": "3", "SLURM_TASKS_PER_NODE": "2,1"}
    assert slots_by_node(environment, ["a", "b"], 5, {"a": 2, "b": 1}) == {"a": 2, "b": 1}
    assert slots_by_node(environment, ["a", "b"], 5, {"a": 2}) == {"a": 2, "b": 0}
    assert slots_by_node(environment, ["a", "b"], 5, {}) == {"a": 2, "b": 2}  # an older Slurm, which does not tell


def test_states_of_nodes() -> None:
    text = "a|idle\nb|mixed*\nc|down*\nc|down*\nd|draining\ne|drained\nf|allocated\ng|idle~\nh|failing\ni|planned\n"
    states = states_of_nodes(text)
    assert {name for name, found in states.items() if found & FAILED_STATES} == {"c", "e"}
    assert {name for name, found in states.items() if found & LEAVING_STATES} == {"d", "h"}
    assert states_of_nodes("") == {}


def allocation(answers: Answers, now: list[float]) -> Allocation:
    environment = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_GPUS_ON_NODE": "2"}
    return Allocation(environment, 1, answers, lambda: now[0])


def found(source: Allocation) -> list[str]:
    return [str(host) for host in asyncio.run(source.find())]


def test_nodes_that_fail_leave_and_slurmctld_is_asked_now_and_then() -> None:
    now = [0.0]
    answers = Answers(scontrol="node1\nnode2\n", squeue="7|node[1-2]\n", sinfo="node1|mixed\nnode2|mixed\n")
    source = allocation(answers, now)
    assert found(source) == ["node1:2", "node2:2"]
    asked = len(answers.asked)
    answers.printed["sinfo"] = "node1|mixed\nnode2|down\n"
    now[0] = ASK_INTERVAL - 0.1
    assert found(source) == ["node1:2", "node2:2"]
    assert len(answers.asked) == asked
    assert sum("hostnames" in line for line in answers.asked) == 1, "as the nodes are those of the start"
    now[0] = ASK_INTERVAL
    assert found(source) == ["node1:2"]


def test_a_node_that_is_being_drained_is_left_with_notice_until_slurm_takes_it_back() -> None:
    now = [0.0]
    answers = Answers(scontrol="node1\nnode2\n", squeue="7|node[1-2]\n", sinfo="node1|mixed\nnode2|draining*\n")
    source = allocation(answers, now)
    assert [(host.name, host.leaving) for host in asyncio.run(source.find())] == [("node1", None), ("node2", LEAVING)]
    answers.printed["sinfo"] = "node1|mixed\nnode2|mixed\n"
    now[0] = ASK_INTERVAL
    assert [host.leaving for host in asyncio.run(source.find())] == [None, None]


def test_nodes_with_different_numbers_of_gpus() -> None:
    details = (
        "JobId=7 JobName=train\n"
        "     Nodes=node1 CPU_IDs=0 Mem=0 GRES=gpu:2(IDX:0-1)\n"
        "     Nodes=node[2-3] CPU_IDs=0 Mem=0 GRES=gpu:a100:1(IDX:0)\n"
        "     Nodes=node4 CPU_IDs=0 Mem=0 GRES=\n"
    )
    expanded = {"node[1-4]": "node1 node2 node3 node4", "node1": "node1", "node[2-3]": "node2 node3"}
    asked = []

    async def answer(words: Sequence[str]) -> str:
        asked.append(words)
        await asyncio.sleep(0)  # as a command, it lets others run meanwhile
        match words:
            case ("scontrol", "show", "hostnames", nodes):
                return expanded[nodes]
            case ("scontrol", "show", "job", "--details", "7"):
                return details
            case ("squeue", *_):
                return "7|node[1-4]\n"
            case _:
                return ""

    environment = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node[1-4]", "SLURM_GPUS_ON_NODE": "2"}
    assert found(Allocation(environment, 1, answer, lambda: 0.0)) == ["node1:2", "node2:1", "node3:1"]
    gpus = NodeGpus(environment, answer)
    asked.clear()

    async def find_at_once() -> None:
        for counts in await asyncio.gather(gpus.find(), gpus.find()):
            assert counts == {"node1": 2, "node2": 1, "node3": 1}

    asyncio.run(find_at_once())
    assert sum("--details" in words for words in asked) == 1, "all agents start at once"
    asked.clear()
    environment["SLURM_GPUS_PER_NODE"] = "2"
    assert found(Allocation(environment, 1, answer, lambda: 0.0)) == [f"node{n}:2" for n in range(1, 5)]
    assert not any("--details" in words for words in asked)


def test_nodes_that_slurm_has_taken_out_of_the_job_leave() -> None:
    now = [0.0]
    answers = Answers(scontrol="node1\nnode2\n", squeue="7|node[1-2]\n", sinfo="")
    source = allocation(answers, now)
    assert found(source) == ["node1:2", "node2:2"]
    now[0] += ASK_INTERVAL
    answers.printed |= {"scontrol": "node2\n", "squeue": "7|node2\n"}
    assert found(source) == ["node2:2"]
    now[0] += ASK_INTERVAL
    answers.printed["squeue"] = "7|\n"
    assert found(source) == []


def test_nodes_of_the_other_jobs_of_an_array_are_not_used() -> None:
    assert nodes_of("8|node[3-4]\n7|node[1-2]\n", "7") == "node[1-2]"
    assert nodes_of("8|node[3-4]\n", "7") == ""
    answers = Answers(scontrol="node1\nnode2\n", squeue="8|node[3-4]\n7|node[1-2]\n", sinfo="")
    assert found(allocation(answers, [0.0])) == ["node1:2", "node2:2"]
    assert any("--nodes=node[1-2] " in line for line in answers.asked)


def test_a_slurmctld_that_does_not_answer_is_no_change() -> None:
    now = [0.0]
    answers = Answers(scontrol="node1\n", squeue=SlurmError("squeue exited with code 1"), sinfo="")
    source = allocation(answers, now)
    for _ in range(2):  # it is not asked again at once
        with pytest.raises(DiscoveryError, match="squeue exited with code 1"):
            found(source)
    assert sum("squeue" in line for line in answers.asked) == 1
    answers.printed["squeue"] = "7|node1\n"
    now[0] += ASK_INTERVAL
    assert found(source) == ["node1:2"]


def test_without_slurms_commands_the_source_cannot_be_used() -> None:
    with pytest.raises(UnusableSourceError, match="cannot be run"):
        found(allocation(Answers(scontrol=SlurmError("scontrol cannot be run here")), [0.0]))


def test_outside_an_allocation() -> None:
    with pytest.raises(DiscoveryError, match="sbatch"):
        Allocation({}, 1, Answers(), lambda: 0.0)


def test_a_command_that_fails_or_is_not_there() -> None:
    assert asyncio.run(run_command(["echo", "node1"])) == "node1\n"
    with pytest.raises(SlurmError, match=r"sh exited with code 3; the last of its stderr: no such partition"):
        asyncio.run(run_command(["sh", "-c", "echo no such partition >&2; exit 3"]))
    with pytest.raises(SlurmError, match="no-such-command cannot be run here"):
        asyncio.run(run_command(["no-such-command"]))


def test_a_step_has_all_of_its_node_whatever_the_job_looks_like() -> None:
    environment = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "8", "SLURM_MEM_PER_CPU": "100", "PATH": "/bin"}
    assert step_environment(environment) == {"SLURM_JOB_ID": "7", "PATH": "/bin"}
    command = step_command("node1", "edriver-1", gpus=2)
    assert "--gpus=2" in command
    assert not any("gpus" in word for word in step_command("node1", "edriver-1"))
    assert {"--overlap", "--no-kill", "--kill-on-bad-exit=0", "--nodelist=node1", "--mem=0"} <= set(command)


class Steps:
    """A launcher whose srun is a shell, and what came of one agent.

    Args:
        script: what the shell runs in the place of srun.
        answers: Slurm's other commands.
    """

    def __init__(self, script: str, answers: Answers | None = None) -> None:
        self.reason: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.config = b""
        self._script = script
        self.launcher = StepLauncher("r1", {"SLURM_JOB_ID": "7"}, answers or Answers(), self._spawn)

        async def config() -> bytes:
            return b"secret"

        self.bootstrap = Bootstrap(3, config, self.reason.set_result)

    def _spawn(self, command: Sequence[str], environment: Mapping[str, str], config: bytes) -> Child:
        assert not any(b"secret" in word.encode() for word in [*command, *environment.values()])
        self.config = config
        return Child(["sh", "-c", self._script], stderr=subprocess.PIPE)


def soon(work: object) -> None:
    asyncio.run(asyncio.wait_for(work, 20))  # type: ignore[arg-type]


def test_the_reason_of_a_step_that_does_not_start_has_sruns_words() -> None:
    async def work() -> None:
        steps = Steps("echo 'srun: error: no such node' >&2; exit 1")
        await steps.launcher.start("node1", steps.bootstrap)
        assert await steps.reason == "its step exited with code 1: srun: error: no such node"
        assert steps.config == b"secret"
        assert not steps.launcher.watches(3)

    soon(work())


def test_a_step_is_stopped_by_slurm() -> None:
    async def work() -> None:
        answers = Answers(squeue="7.0|edriver-r1-2\n7.1|edriver-r1-3\n7.batch|batch\n", scancel="")
        steps = Steps("exec sleep 3600", answers)
        await steps.launcher.start("node1", steps.bootstrap)
        assert steps.launcher.watches(3)
        await steps.launcher.stop(3)
        assert await steps.reason == "its step was killed by SIGKILL"
        assert [line for line in answers.asked if line.startswith("scancel")] == ["scancel --signal=KILL 7.1"]

    soon(work())


def test_a_step_is_given_up_where_slurmctld_does_not_answer() -> None:
    async def work() -> None:
        steps = Steps("exec sleep 3600", Answers(squeue=SlurmError("squeue exited with code 1")))
        await steps.launcher.start("node1", steps.bootstrap)
        await steps.launcher.stop(3)
        await steps.reason

    soon(work())


def test_the_end_of_srun_alone_is_not_the_end_of_its_agent() -> None:
    async def work() -> None:
        steps = Steps("kill -9 $$")
        steps.bootstrap.connected.set()
        await steps.launcher.start("node1", steps.bootstrap)
        await steps.launcher._steps[3].srun.gone.wait()
        await asyncio.sleep(0)
        assert not steps.launcher.watches(3)
        assert not steps.reason.done()

    soon(work())


def test_the_end_of_a_step_is_the_end_of_its_agent() -> None:
    async def work() -> None:
        steps = Steps("exit 3")
        steps.bootstrap.connected.set()
        await steps.launcher.start("node1", steps.bootstrap)
        assert await steps.reason == "its step exited with code 3"

    soon(work())
