"""What edriver says about mistakes of those who come from torchrun or Horovod, and how soon.

    python -m benchmarks.mistakes [NAME ...]

Each is made as a user makes it, by an `edriver` command, where ranks matter with three of them on two hosts. Prints a
row for each, in Markdown: what was wrong; the line in which edriver said so; after how long, from the first step that a
rank made, or from the command where none was made. Fails if one is silent, or lacks words that it must have: the place
in the script, the flag, the way out.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from tests.process.running import ROOT, SCRIPTS, Run, edriver, running
from tests.waiting import until

T = TypeVar("T")

PATIENCE: Final = 90.0
"""Seconds in which the first step is made, and a mistake is named, or counts as silent."""

THREE: Final = ("-np", "3", "--min-np", "2", "-H", "localhost:2,127.0.0.2:1")
JOB: Final = (sys.executable, str(Path(__file__).with_name("mistaken_job.py")))
CARELESS: Final = (sys.executable, str(SCRIPTS / "careless.py"))
MISTAKES: Final = (sys.executable, str(SCRIPTS / "mistakes.py"))
HI: Final = (sys.executable, "hi.py")

STEP: Final = r"has made a step|at step 0"
"""How the scripts announce the first step."""

PLACE: Final = r"(mistaken_job|careless|mistakes)\.py:\d+|(mistaken_job|careless|mistakes)\.py\", line \d+"
"""A line of a script."""

FILES: Final = {
    "hi.py": "print('hi')\n",
    "imports.py": "import edriver\n",
    "not_executable.sh": "#!/bin/sh\necho localhost:2\n",
    "rubbish.sh": "#!/bin/sh\necho '<html>502 Bad Gateway</html>'\n",
    "fails.sh": "#!/bin/sh\necho 'no such cluster' >&2\nexit 3\n",
}
"""What lies in the folder of each run; all but the first three can be executed."""


@dataclass(frozen=True)
class Mistake:
    """A mistake, and what has to be said about it.

    Attributes:
        name: its name.
        wrong: what was wrong.
        args: edriver's arguments.
        sign: a pattern of the line that counts.
        words: patterns of what has to be said besides, in that line or in others.
        environ: variables for the script.
        act: what is done once the first step has been made; returns what was said about it, if that is not the run.
    """

    name: str
    wrong: str
    args: Sequence[str]
    sign: str
    words: Sequence[str] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    act: Callable[[Run], str] = lambda _: ""


def in_job(name: str, wrong: str, sign: str, *words: str) -> Mistake:
    """One that mistaken_job.py makes."""
    return Mistake(name, wrong, (*THREE, *JOB), sign, words, {"MISTAKE": name})


def in_script(script: Sequence[str], name: str, wrong: str, sign: str, *words: str) -> Mistake:
    """One that a script of the tests makes."""
    return Mistake(name, wrong, (*THREE, *script), sign, words, {"MISTAKE": name})


def meanwhile(name: str, wrong: str, act: Callable[[Run], str], sign: str, *words: str) -> Mistake:
    """One that is made beside a run that trains."""
    return Mistake(name, wrong, (*THREE, "--name", "mine", *JOB), sign, words, {"MISTAKE": "", "PAUSE": "1"}, act)


def command(name: str, wrong: str, args: Sequence[str], sign: str, *words: str) -> Mistake:
    """One on the command line."""
    return Mistake(name, wrong, args, sign, words)


def stop_a_rank(run: Run) -> str:
    """SIGSTOP, as a debugger or a batch system sends it."""
    os.kill(until(lambda: run.pids().get(1)), signal.SIGSTOP)
    return ""


def told(*words: str) -> Callable[[Run], str]:
    """An order to the run."""

    def act(run: Run) -> str:
        done = edriver(words[0], "--run", run.id, *words[1:])
        return done.stdout + done.stderr

    return act


def ask_by_name(_: Run) -> str:
    """A question by a name that another run has got, too."""
    with running(["-np", "1", "--name", "mine", "sleep", "60"], Path.cwd()) as other:
        other.line("waiting")
        done = edriver("status", "--run", "mine")
    return done.stdout + done.stderr


LIST: Final = (
    in_script(CARELESS, "no-boundary", "a loop without a boundary", r"without a boundary", PLACE, r"Call state\.check"),
    in_script(CARELESS, "no-sampler", "a loader without a sampler", r"the same samples", PLACE, r"sampler=edriver\.El"),
    in_script(CARELESS, "weighted", "a WeightedRandomSampler that all ranks seed alike", "the same samples", PLACE),
    in_job("torch-sampler", "a DistributedSampler, as under torchrun", "DistributedSampler starts", "ElasticSampler"),
    in_job("same-epoch", "set_epoch is forgotten", "^edriver: .*ValueError: batch 0", PLACE, "call set_epoch"),
    in_job("not-recorded", "record_batch is forgotten", "none of it recorded", r"call sampler\.record_batch"),
    in_job("not-kept", "neither model nor optimizer is in the state", "the state has neither", r"TorchState\(model"),
    in_job(
        "unpicklable", "an open file is in the state", "^edriver: .*attribute 'log' cannot be kept", PLACE, "keep what"
    ),
    in_script(
        MISTAKES, "differs", "a value in the state differs between ranks", "disagree about", "'best'", "from_rank_0"
    ),
    in_script(CARELESS, "not-finite", "a reported loss is NaN", r"reported loss = nan", PLACE, "rank 1"),
    in_job("ddp", "DistributedDataParallel outside of the training function", "hint: ", PLACE, "move the line there"),
    in_job("early-sampler", "a DistributedSampler outside of it", "hint: ", PLACE, "move the line there"),
    in_job("not-run", "the function is not decorated", "hint: ", PLACE, r"@edriver\.run"),
    in_job("init", "init_process_group at the top of the script", "hint: ", PLACE, "delete init_process_group"),
    in_job("rank", "RANK is read from the environment", "hint: ", PLACE, r"edriver\.rank\(\)"),
    in_job(
        "async", "the training function is async", "^edriver: .*is an async function", PLACE, "Make it a plain function"
    ),
    in_job("no-module", "a module is not installed", "^edriver: .*No module named 'a_module", PLACE),
    in_job(
        "checkpoint", "the checkpoint folder cannot be written", "a checkpoint cannot be written to /proc", "training"
    ),
    in_job("raises", "an exception in one rank", "the script raised KeyError", PLACE, "rank 1", "KeyError: 'label'"),
    in_job("exits", "sys.exit in one rank", "the script raised SystemExit", PLACE, "rank 1"),
    in_job("memory", "one rank runs out of memory", "the script raised RuntimeError", PLACE, "can't allocate memory"),
    Mistake(
        "sleeps",
        "one rank hangs (--stall-timeout 5)",
        (*THREE, "--stall-timeout", "5", *JOB),
        r"has made no progress for .*mistaken_job\.py:",
        (PLACE,),
        {"MISTAKE": "sleeps"},
    ),
    in_script(MISTAKES, "uneven", "ranks make unequal numbers of steps", "uneven steps:", "is done after 5 steps"),
    in_script(
        MISTAKES, "barrier", "one rank calls a collective alone", "waiting for one another", PLACE, "in the same"
    ),
    in_script(MISTAKES, "other-size", "one rank calls a collective of another size", "ranks called different", PLACE),
    meanwhile("stopped", "a process is stopped (SIGSTOP)", stop_a_rank, "is stopped by a signal"),
    meanwhile(
        "drain",
        "a host that is not there is drained",
        told("drain", "nosuchhost"),
        "no host .nosuchhost.",
        "it has localhost",
    ),
    meanwhile("resize", "a resize to more than --max-np", told("resize", "9"), "9 is not in this range", "--max-np"),
    meanwhile("name", "a question by a name that two runs have", ask_by_name, "several runs have the name", "--run"),
    command("min-mp", "a misspelt flag", ("-np", "2", "--min-mp", "1", *HI), "did you mean --min-np"),
    command("max-np", "-np above --max-np", ("-np", "4", "--max-np", "2", *HI), "must not be below -np"),
    command(
        "slots",
        "more workers than slots",
        ("-np", "4", "-H", "localhost:2", *HI),
        "the run needs 4 slots",
        "--min-np 2",
    ),
    command(
        "script",
        "the script does not exist",
        ("-np", "2", sys.executable, "train.py"),
        r"^edriver: .*can't open .*train\.py",
    ),
    command("program", "the program does not exist", ("-np", "2", "train"), "no command 'train'", "PATH"),
    command(
        "python", "a Python without edriver", ("-np", "2", *JOB[:1], "-IS", "imports.py"), "hint: ", "Name the Python"
    ),
    command(
        "no-discovery",
        "no such discovery script",
        ("-np", "2", "--host-discovery-script", "./x.sh", *HI),
        "failed:",
        r"'\./x\.sh'",
        "there is no such file",
    ),
    command(
        "not-executable",
        "a discovery script that cannot be executed",
        ("-np", "2", "--host-discovery-script", "./not_executable.sh", *HI),
        "failed:",
        r"chmod \+x",
    ),
    command(
        "rubbish",
        "a discovery script that prints an error page",
        ("-np", "2", "--host-discovery-script", "./rubbish.sh", *HI),
        "discovery failed",
        "502",
        "write host:4",
    ),
    command(
        "fails",
        "a discovery script that fails",
        ("-np", "2", "--host-discovery-script", "./fails.sh", *HI),
        "discovery failed",
        "code 3",
        "no such cluster",
    ),
    command(
        "host",
        "a host name that is not known",
        ("-np", "3", "--min-np", "2", "-H", "localhost:2,nosuchhost.invalid:1", *HI),
        "host nosuchhost.invalid is not used",
        "check the spelling|knows its name",
    ),
)


@dataclass(frozen=True)
class Said:
    """What was said about a mistake.

    Attributes:
        line: the line; empty: nothing.
        seconds: after how long.
        lacking: the words that were missing.
    """

    line: str
    seconds: float
    lacking: Sequence[str]

    @property
    def fault(self) -> str:
        """What is wrong with it; empty: nothing."""
        if not self.line:
            return "SILENT"
        return f"LACKS {', '.join(self.lacking)}" if self.lacking else ""


def make(mistake: Mistake, folder: Path) -> Said:
    """Make a mistake, and read what is said about it."""
    for number, (name, text) in enumerate(FILES.items()):
        path = folder / name
        path.write_text(text)
        path.chmod(0o755 if number > 2 else 0o644)
    began = time.monotonic()
    with running([*mistake.args], folder, {"PAUSE": "0.05", **mistake.environ}) as run:
        heard(lambda: matching(STEP, run.text) or matching(mistake.sign, run.text), run)
        began = time.monotonic() if matching(STEP, run.text) else began
        other = mistake.act(run)
        line = matching(mistake.sign, other) if other else heard(lambda: matching(mistake.sign, run.text), run)
        seconds = time.monotonic() - began
        if line and not other:
            heard(lambda: all(re.search(word, run.text) for word in mistake.words), run)
        text = other or run.text
    line = line.replace(f"{folder}/", "")
    return Said(line, seconds, [word for word in mistake.words if not re.search(word, text)])


def heard(look: Callable[[], T], run: Run) -> T:
    """What a look finds at last: when it finds something, nothing more will be printed, or patience ends."""
    with suppress(AssertionError):
        until(lambda: look() or run.ended, bound=PATIENCE, every=0.02)
    return look()


def matching(pattern: str, text: str) -> str:
    """The first line with the pattern; empty: none has it."""
    return next((line for line in text.splitlines() if re.search(pattern, line)), "")


def row(mistake: Mistake, said: Said) -> str:
    """A row of the table."""
    line = said.line.replace(f"{ROOT}/", "").replace("|", "\\|")
    return f"| {mistake.name} | {mistake.wrong} | {line} | {said.seconds:.1f} s | {said.fault or 'complete'} |"


def rows(mistakes: Sequence[Mistake]) -> Iterator[str]:
    """Make all of them; yields what is wrong with one."""
    print("| name | what was wrong | what edriver says | after | |\n| --- | --- | --- | --- | --- |")
    for mistake in mistakes:
        with tempfile.TemporaryDirectory(prefix="ed-", ignore_cleanup_errors=True) as place:
            os.environ["XDG_STATE_HOME"] = place
            said = make(mistake, Path(place))
        print(row(mistake, said), flush=True)
        if said.fault:
            yield f"{mistake.name}: {said.fault}"


def main() -> None:
    """Make them, print them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mistakes")
    parser.add_argument("names", nargs="*", metavar="NAME", choices=[[], *(each.name for each in LIST)])
    names = parser.parse_args().names
    faults = [*rows([each for each in LIST if not names or each.name in names])]
    sys.exit("\n".join(faults) or 0)


if __name__ == "__main__":
    main()
