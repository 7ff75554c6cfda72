"""Slurm's answers, the nodes of an allocation, and agents as steps, with stand-ins for Slurm's commands."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from edriver.discovery.errors import DiscoveryError, UnusableSourceError
from edriver.driver.core.demand import Demand
from edriver.driver.engines.slurm import pass_on
from edriver.driver.engines.slurm.allocation import ASK_INTERVAL, Allocation
from edriver.driver.engines.slurm.answers import counts_of, failed_nodes, gpus_of, nodes_of, slots_by_node
from edriver.driver.engines.slurm.broker import LOOK_INTERVAL, JobBroker
from edriver.driver.engines.slurm.commands import SlurmError, run_command
from edriver.driver.engines.slurm.health import JOIN_TIMEOUT, LAST_PAUSE, JobHealth
from edriver.driver.engines.slurm.jobs import Job, Plan, parse_jobs, plan, queue_text
from edriver.driver.engines.slurm.node_gpus import NodeGpus
from edriver.driver.engines.slurm.steps import StepLauncher, step_command, step_environment
from edriver.driver.engines.slurm.submission import Submission
from edriver.driver.launch.broker import BrokerError, UnusableBrokerError
from edriver.driver.launch.launcher import Bootstrap
from edriver.system.child import Child
from edriver.system.runs import RUN_FOLDER_VARIABLE


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
    assert failed_nodes(text) == {"c", "d", "e", "h"}
    assert failed_nodes("") == set()


class Answers:
    """Slurm's commands, by name: what they print, or why they fail."""

    def __init__(self, **printed: str | SlurmError) -> None:
        self.printed = printed
        self.asked: list[str] = []

    async def __call__(self, words: Sequence[str]) -> str:
        self.asked.append(" ".join(words))
        answer = self.printed[words[0]]
        if isinstance(answer, SlurmError):
            raise answer
        return answer


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


# ---- jobs that bring agents


def job(number: int, state: str = "RUNNING", node: str = "", reason: str = "None") -> Job:
    return Job(str(number), state, reason, node)


def test_jobs_are_parsed() -> None:
    text = "12|PENDING|Resources|\n13|RUNNING|None|node1\n\nnot a job\n"
    assert parse_jobs(text) == [job(12, "PENDING", reason="Resources"), job(13, node="node1")]
    assert parse_jobs(text)[1].host == "node1.job13"
    assert queue_text(parse_jobs(text)) == "1 job waits in Slurm's queue (Resources)"
    assert queue_text([job(1, node="a")]) == ""


RUNNING = [job(1, node="a"), job(2, node="b"), job(3, node="c")]
WAITING = [job(4, "PENDING"), job(5, "PENDING")]


@pytest.mark.parametrize(
    ("jobs", "slots", "unused", "expected"),
    [
        pytest.param([], 5, [], Plan(submit=3), id="as-many-as-hold-the-slots"),
        pytest.param([*RUNNING, *WAITING], 10, [], Plan(), id="enough"),
        pytest.param([*RUNNING, job(6, "COMPLETING"), job(7, "PREEMPTED")], 8, [], Plan(submit=1), id="preempted"),
        pytest.param([*RUNNING, *WAITING], 8, [], Plan(cancel=("5",)), id="the-latest-that-waits-goes-first"),
        pytest.param([*RUNNING, *WAITING], 4, ["b.job2"], Plan(cancel=("5", "4", "2")), id="and-what-is-not-used"),
        pytest.param(RUNNING, 2, [], Plan(), id="what-is-used-stays"),
        pytest.param(RUNNING, 6, ["x.job9", "c.job3"], Plan(1, ("3",)), id="another-in-the-place-of-a-drained-one"),
        pytest.param([], 1000, [], Plan(submit=16), id="some-at-a-time"),
    ],
)
def test_plan(jobs: list[Job], slots: int, unused: list[str], expected: Plan) -> None:
    assert plan(jobs, slots, 2, [], unused) == expected


def test_a_host_counts_whose_job_slurm_no_longer_has() -> None:
    hosts = ["a.job1", "b.job2"]
    assert plan([job(1, "NODE_FAIL", "a"), job(2, node="b")], 4, 2, hosts, []) == Plan()
    assert plan([job(1, "PENDING", reason="BeginTime"), job(2, node="b")], 4, 2, hosts, []) == Plan(cancel=("1",))
    assert plan([job(1, "NODE_FAIL", "a"), job(2, node="b")], 4, 2, hosts, ["a.job1"]) == Plan(submit=1)


def test_a_job_that_slurm_queues_again_is_the_same_ask() -> None:
    ending = [job(1, "COMPLETING", "a"), job(2, node="b")]
    assert plan(ending, 4, 2, [], [], requeued=True) == Plan()
    assert plan(ending, 4, 2, [], []) == Plan(submit=1)
    assert plan([*ending, job(3, "PENDING")], 4, 2, [], [], requeued=True) == Plan(), "another is not given up for it"


def test_a_job_that_starts_elsewhere_is_waited_for_again() -> None:
    health = JobHealth()
    for node, host, lost in (("a", "a.job1", 0), ("b", "a.job1", 0), ("b", "b.job1", 0), ("b", "a.job1", 1)):
        jobs = [job(1, node=node)]
        health.new_failures(jobs, 0.0)
        assert len(health.without_agent(jobs, [host], 0.0)) == lost


SUBMISSION = Submission("r1", "main", ("--time=10",), 2, lambda: "head:7777", "/home/me/c.json")


def test_a_submission() -> None:
    command = SUBMISSION.command
    assert command[:2] == ["sbatch", "--parsable"]
    assert command.index("--time=10") > command.index("--nodes=1"), "the operator's arguments win"
    script = command[-1]
    first, step, agent = script.splitlines()
    assert first == f"--wrap=unset {RUN_FOLDER_VARIABLE}", "what has it is killed with what is left of the driver"
    assert step.endswith("/pass_on.py $$) &")
    assert agent.startswith("exec "), "Slurm's signal for the script is for the agent"
    assert "--driver head:7777 --no-wait --credentials /home/me/c.json --slots 2" in script
    assert script.endswith('--host "$SLURMD_NODENAME.job$SLURM_JOB_ID"')


def test_a_notice_is_passed_on() -> None:
    agent = subprocess.Popen(["sleep", "3600"])
    passing = subprocess.Popen([sys.executable, "-I", "-S", pass_on.__file__, str(agent.pid)])
    try:
        deadline = time.monotonic() + 20
        while "sigtimedwait" not in Path(f"/proc/{passing.pid}/wchan").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        passing.terminate()
        assert passing.wait(20) == 0
        assert agent.wait(20) == -signal.SIGUSR1
    finally:
        for process in (passing, agent):
            process.kill()
            process.wait()


class Queue:
    """A broker over stand-ins for Slurm's commands, in virtual time."""

    def __init__(self) -> None:
        self.answers = Answers(squeue="", sbatch="1\n", scancel="")
        self.now = 0.0
        self.broker = JobBroker(SUBMISSION, self.answers, lambda: self.now)

    def meet(self, slots: int, seconds: float = 0.0, hosts: tuple[str, ...] = ()) -> list[str]:
        """Call it once a second for so long; the commands that were run, squeue aside."""
        self.answers.asked.clear()
        for _ in range(1 + int(seconds)):
            asyncio.run(self.broker.meet(Demand(slots, 1, hosts=hosts)))
            self.now += 1.0
        return [line.split()[0] for line in self.answers.asked if not line.startswith("squeue")]


def test_a_broker_submits_what_is_missing() -> None:
    queue = Queue()
    assert queue.meet(4) == ["sbatch", "sbatch"]
    queue.answers.printed["squeue"] = "1|PENDING|Priority|\n2|RUNNING|None|a\n"
    assert queue.meet(4, 20) == []
    assert len(queue.answers.asked) <= 5, "slurmctld is asked every few seconds"
    assert queue.meet(6) == ["sbatch"], "a change of the demand is not left waiting"
    assert queue.meet(2) == ["scancel"], "one waits that is too much"


def test_a_broker_whose_first_job_is_refused_cannot_be_used() -> None:
    queue = Queue()
    queue.answers.printed["sbatch"] = SlurmError("sbatch exited with code 1; Invalid partition")
    with pytest.raises(UnusableBrokerError, match=r"Slurm takes no job of this run: sbatch .* Invalid partition"):
        queue.meet(2)


def test_a_broker_backs_off_when_the_queue_refuses() -> None:
    queue = Queue()
    queue.meet(2)
    queue.answers.printed["sbatch"] = SlurmError("sbatch exited with code 1; QOSMaxSubmitJobPerUserLimit")
    refused = queue.meet(2, 3600)
    assert 10 < len(refused) < 25, "5 s, 10 s, up to 5 min"
    queue.answers.printed["sbatch"] = "2\n"
    assert queue.meet(2, LAST_PAUSE + 10)
    queue.answers.printed["sbatch"] = SlurmError("sbatch exited with code 1; QOSMaxSubmitJobPerUserLimit")
    assert len(queue.meet(2, 40)) >= 3, "a job that was accepted has made the pauses short again"


def test_a_broker_backs_off_from_jobs_that_fail_at_once() -> None:
    queue = Queue()
    ended = ""
    submitted = 0
    for _ in range(600):
        if queue.meet(2):
            submitted += 1
            ended += f"{submitted}|FAILED|NonZeroExitCode|a\n"
        queue.answers.printed["squeue"] = ended
    assert 5 < submitted < 12


def test_a_broker_waits_for_a_slurmctld_that_does_not_answer() -> None:
    queue = Queue()
    queue.answers.printed["squeue"] = SlurmError("squeue exited with code 1")
    for _ in range(3):
        with pytest.raises(BrokerError, match="Slurm does not answer"):
            queue.meet(2)
        queue.now += 1.0
    assert queue.answers.asked == [], "it is not asked again at once"
    queue.answers.printed["squeue"] = ""
    queue.now += LOOK_INTERVAL
    assert queue.meet(2, LOOK_INTERVAL)[0] == "sbatch"


def test_a_job_whose_agent_is_gone_is_cancelled_and_replaced() -> None:
    queue = Queue()
    queue.answers.printed["squeue"] = "1|RUNNING|None|a\n"
    assert queue.meet(2, 20, ("a.job1",)) == []
    assert queue.meet(2, LOOK_INTERVAL) == ["scancel", "sbatch"]


def test_a_job_whose_agent_does_not_come_is_cancelled_in_time() -> None:
    queue = Queue()
    queue.answers.printed["squeue"] = "1|RUNNING|None|a\n"
    assert queue.meet(2, JOIN_TIMEOUT - 10) == []
    assert "scancel" in queue.meet(2, 20)


def test_a_broker_gives_all_back_at_the_end() -> None:
    queue = Queue()
    asyncio.run(queue.broker.close())
    assert queue.answers.asked == ["scancel --quiet --name=edriver-r1"]
    queue.answers.printed["scancel"] = SlurmError("scancel exited with code 1")
    with pytest.raises(BrokerError, match="scancel --name=edriver-r1"):
        asyncio.run(queue.broker.close())
