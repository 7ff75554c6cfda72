"""Jobs that bring agents to a partition: which are submitted and given back, and when, without Slurm."""

from __future__ import annotations

import asyncio
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from edriver.driver.core.demand import Demand
from edriver.driver.engines.slurm import pass_on
from edriver.driver.engines.slurm.broker import LOOK_INTERVAL, JobBroker
from edriver.driver.engines.slurm.commands import SlurmError
from edriver.driver.engines.slurm.health import JOIN_TIMEOUT, LAST_PAUSE, JobHealth
from edriver.driver.engines.slurm.jobs import Job, JobChanges, parse_jobs, plan, queue_text
from edriver.driver.engines.slurm.submission import Submission
from edriver.driver.launch.broker import BrokerError, UnusableBrokerError
from edriver.system.runs import RUN_FOLDER_VARIABLE
from tests.slurm_answers import Answers
from tests.waiting import until


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
        pytest.param([], 5, [], JobChanges(submit=3), id="as-many-as-hold-the-slots"),
        pytest.param([*RUNNING, *WAITING], 10, [], JobChanges(), id="enough"),
        pytest.param(
            [*RUNNING, job(6, "COMPLETING"), job(7, "PREEMPTED")], 8, [], JobChanges(submit=1), id="preempted"
        ),
        pytest.param([*RUNNING, *WAITING], 8, [], JobChanges(cancel=("5",)), id="the-latest-that-waits-goes-first"),
        pytest.param(
            [*RUNNING, *WAITING], 4, ["b.job2"], JobChanges(cancel=("5", "4", "2")), id="and-what-is-not-used"
        ),
        pytest.param(RUNNING, 2, [], JobChanges(), id="what-is-used-stays"),
        pytest.param(
            RUNNING, 6, ["x.job9", "c.job3"], JobChanges(1, ("3",)), id="another-in-the-place-of-a-drained-one"
        ),
        pytest.param([], 1000, [], JobChanges(submit=16), id="some-at-a-time"),
    ],
)
def test_plan(jobs: list[Job], slots: int, unused: list[str], expected: JobChanges) -> None:
    assert plan(jobs, slots, 2, [], unused) == expected


def test_a_host_counts_whose_job_slurm_no_longer_has() -> None:
    hosts = ["a.job1", "b.job2"]
    assert plan([job(1, "NODE_FAIL", "a"), job(2, node="b")], 4, 2, hosts, []) == JobChanges()
    assert plan([job(1, "PENDING", reason="BeginTime"), job(2, node="b")], 4, 2, hosts, []) == JobChanges(cancel=("1",))
    assert plan([job(1, "NODE_FAIL", "a"), job(2, node="b")], 4, 2, hosts, ["a.job1"]) == JobChanges(submit=1)


def test_a_job_that_slurm_queues_again_is_the_same_ask() -> None:
    ending = [job(1, "COMPLETING", "a"), job(2, node="b")]
    assert plan(ending, 4, 2, [], [], requeued=True) == JobChanges()
    assert plan(ending, 4, 2, [], []) == JobChanges(submit=1)
    assert plan([*ending, job(3, "PENDING")], 4, 2, [], [], requeued=True) == JobChanges(), (
        "another is not given up for it"
    )


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
    assert step.endswith(f" {shlex.quote(pass_on.__file__)} $$) &")
    assert agent.startswith("exec "), "Slurm's signal for the script is for the agent"
    assert "--driver head:7777 --no-wait --credentials /home/me/c.json --slots 2" in script
    assert script.endswith('--host "$SLURMD_NODENAME.job$SLURM_JOB_ID"')


def test_a_notice_is_passed_on() -> None:
    agent = subprocess.Popen(["sleep", "3600"])
    passing = subprocess.Popen([sys.executable, "-I", "-S", pass_on.__file__, str(agent.pid)])
    try:
        until(lambda: "sigtimedwait" in Path(f"/proc/{passing.pid}/wchan").read_text(), "it waits for signals")
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

    def reconcile(self, slots: int, seconds: float = 0.0, hosts: tuple[str, ...] = ()) -> list[str]:
        """Call it once a second for so long; the commands that were run, squeue aside."""
        self.answers.asked.clear()
        for _ in range(1 + int(seconds)):
            asyncio.run(self.broker.reconcile(Demand(slots, 1, hosts=hosts)))
            self.now += 1.0
        return [line.split()[0] for line in self.answers.asked if not line.startswith("squeue")]


def test_a_broker_submits_what_is_missing() -> None:
    queue = Queue()
    assert queue.reconcile(4) == ["sbatch", "sbatch"]
    queue.answers.printed["squeue"] = "1|PENDING|Priority|\n2|RUNNING|None|a\n"
    assert queue.reconcile(4, 20) == []
    assert len(queue.answers.asked) <= 5, "slurmctld is asked every few seconds"
    assert queue.reconcile(6) == ["sbatch"], "a change of the demand is not left waiting"
    assert queue.reconcile(2) == ["scancel"], "one waits that is too much"


def test_a_broker_whose_first_job_is_refused_cannot_be_used() -> None:
    queue = Queue()
    queue.answers.printed["sbatch"] = SlurmError("sbatch exited with code 1; Invalid partition")
    with pytest.raises(
        UnusableBrokerError, match=r"Slurm does not accept jobs of this run: sbatch .* Invalid partition"
    ):
        queue.reconcile(2)


def test_a_broker_backs_off_when_the_queue_refuses() -> None:
    queue = Queue()
    queue.reconcile(2)
    queue.answers.printed["sbatch"] = SlurmError("sbatch exited with code 1; QOSMaxSubmitJobPerUserLimit")
    refused = queue.reconcile(2, 3600)
    assert 10 < len(refused) < 25, "5 s, 10 s, up to 5 min"
    queue.answers.printed["sbatch"] = "2\n"
    assert queue.reconcile(2, LAST_PAUSE + 10)
    queue.answers.printed["sbatch"] = SlurmError("sbatch exited with code 1; QOSMaxSubmitJobPerUserLimit")
    assert len(queue.reconcile(2, 40)) >= 3, "a job that was accepted has made the pauses short again"


def test_a_broker_backs_off_from_jobs_that_fail_at_once() -> None:
    queue = Queue()
    ended = ""
    submitted = 0
    for _ in range(600):
        if queue.reconcile(2):
            submitted += 1
            ended += f"{submitted}|FAILED|NonZeroExitCode|a\n"
        queue.answers.printed["squeue"] = ended
    assert 5 < submitted < 12


def test_a_broker_waits_for_a_slurmctld_that_does_not_answer() -> None:
    queue = Queue()
    queue.answers.printed["squeue"] = SlurmError("squeue exited with code 1")
    for _ in range(3):
        with pytest.raises(BrokerError, match="Slurm does not answer"):
            queue.reconcile(2)
        queue.now += 1.0
    assert queue.answers.asked == [], "it is not asked again at once"
    queue.answers.printed["squeue"] = ""
    queue.now += LOOK_INTERVAL
    assert queue.reconcile(2, LOOK_INTERVAL)[0] == "sbatch"


def test_a_job_whose_agent_is_gone_is_cancelled_and_replaced() -> None:
    queue = Queue()
    queue.answers.printed["squeue"] = "1|RUNNING|None|a\n"
    assert queue.reconcile(2, 20, ("a.job1",)) == []
    assert queue.reconcile(2, LOOK_INTERVAL) == ["scancel", "sbatch"]


def test_a_job_whose_agent_does_not_come_is_cancelled_in_time() -> None:
    queue = Queue()
    queue.answers.printed["squeue"] = "1|RUNNING|None|a\n"
    assert queue.reconcile(2, JOIN_TIMEOUT - 10) == []
    assert "scancel" in queue.reconcile(2, 20)


def test_a_broker_gives_all_back_at_the_end() -> None:
    queue = Queue()
    asyncio.run(queue.broker.close())
    assert queue.answers.asked == ["scancel --quiet --name=edriver-r1"]
    queue.answers.printed["scancel"] = SlurmError("scancel exited with code 1")
    with pytest.raises(BrokerError, match="scancel --name=edriver-r1"):
        asyncio.run(queue.broker.close())
