"""A run of edriver in a batch job, as a test follows it: by what it writes to the job's output file."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.engines.slurm.cluster import Cluster
from tests.process.running import BOUND, ROOT, SCRIPTS
from tests.waiting import until

TRAIN = (sys.executable, str(SCRIPTS / "train.py"))

EDRIVER = (sys.executable, "-m", "edriver")


class Batch:
    """A job whose script runs edriver with these arguments.

    Args:
        cluster: where.
        folder: the working folder, which gets the script and its output.
        directives: sbatch's options.
        args: edriver's.
        environ: more variables for the job.
        script: the script's text, with {command} in the place of edriver's command line.
    """

    def __init__(
        self,
        cluster: Cluster,
        folder: Path,
        directives: Sequence[str],
        args: Sequence[str],
        environ: Mapping[str, str] | None = None,
        script: str = "exec {command}",
    ) -> None:
        self._cluster = cluster
        self._output = folder / "job.out"
        self._output.write_text("")
        command = shlex.join([*EDRIVER, *args])
        file = folder / "job.sh"
        file.write_text(f"#!/bin/bash\n{script.format(command=command)}\n")
        python_path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        variables = {"PYTHONPATH": python_path, "SRUN_DEBUG": "", **(environ or {})}
        words = ("sbatch", "--parsable", "--open-mode=append", f"--output={self._output}", *directives, str(file))
        self.job = cluster.command(*words, folder=folder, environ=variables)

    @property
    def lines(self) -> list[str]:
        """What it has printed."""
        return self._output.read_text(errors="replace").splitlines()

    @property
    def text(self) -> str:
        """The same."""
        return "\n".join(self.lines)

    def found(self, pattern: str) -> list[str]:
        """What is found in its lines."""
        return re.findall(pattern, self.text)

    def line(self, pattern: str, after: int = 0) -> re.Match[str]:
        """Wait for the first line, from the given one on, in which the pattern is found."""

        def look() -> re.Match[str] | None:
            ended = self._ended()  # first: what it has written by then is all
            found = next((match for line in self.lines[after:] if (match := re.search(pattern, line))), None)
            assert found or not ended, f"the job ended without a line with {pattern!r}:\n{self.text}"
            return found

        return until(look, lambda: f"a line with {pattern!r} in:\n{self.text}\n{self._cluster.account()}", bound=BOUND)

    def _ended(self) -> bool:
        with contextlib.suppress(AssertionError):  # slurmctld may be stopped
            return not self._cluster.jobs("%i")
        return False

    def requeue(self, *, nodes_fail: bool) -> None:
        """Have Slurm run it once more.

        Args:
            nodes_fail: whether because its nodes fail, instead of by an operator's request.
        """
        if nodes_fail:
            for name in [name for name in self._cluster.nodes if self._cluster.tasks(name)]:
                self._cluster.lose_node(name)
            return
        self._cluster.command("scontrol", "requeue", self.job)
        self._cluster.wait(lambda: self._cluster.jobs("%T") == ["PENDING"], "the job is in the queue again")
        # Not at once: within the same second, slurmd takes the new job for the one that it has just ended.
        self._cluster.command("scontrol", "update", f"JobId={self.job}", "StartTime=now+3")

    def end(self) -> int:
        """Wait for the job's end; returns the exit code of its script."""
        self._cluster.wait(self._ended, "the job has ended", BOUND)
        shown = self._cluster.command("scontrol", "show", "job", "--oneliner", self.job)
        match = re.search(r"ExitCode=(\d+):(\d+)", shown)
        assert match, shown
        return int(match[1])
