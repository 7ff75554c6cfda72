"""edriver's subcommands: what may come first on the command line, in place of a run's flags.

Each is imported once it is asked for.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from edriver.cli.complaint import complain
from edriver.cli.exit_codes import EXIT_FAILED, EXIT_USAGE


@dataclass(frozen=True, slots=True)
class Subcommand:
    """One of them.

    Attributes:
        name: the word.
        summary: what it does, in half a line.
        run: runs it with the words behind its name; returns the exit code.
        parser: makes the parser of those words.
    """

    name: str
    summary: str
    run: Callable[[Sequence[str]], int]
    parser: Callable[[], argparse.ArgumentParser]


def _printed(command: Callable[[], str]) -> int:
    """Print what a run's driver answers."""
    from edriver.text.printable import printable

    def printed() -> int:
        sys.stdout.write(f"{printable(command())}\n")
        return 0

    return _answered(printed)


def _answered(command: Callable[[], int]) -> int:
    """Run a command that queries a run's driver; prints the reason if there is no answer."""
    from edriver.client.errors import RunError

    try:
        return command()
    except RunError as error:
        complain(f"edriver: {error}")
        if error.details:
            complain(f"  (gRPC: {error.details})")
        return EXIT_FAILED


def _show(name: str, arguments: Sequence[str]) -> int:
    return _printed(lambda: str(getattr(importlib.import_module(f"edriver.commands.{name}"), name)(arguments)))


def _steer(verb: str, arguments: Sequence[str]) -> int:
    from edriver.commands.steer import steer

    return _printed(lambda: steer(verb, arguments))


def _logs(arguments: Sequence[str]) -> int:
    from edriver.commands.logs import logs

    return _answered(lambda: logs(arguments))


def _doctor(arguments: Sequence[str]) -> int:
    from edriver.commands.doctor import doctor

    code = 0

    def examine() -> str:
        nonlocal code
        text, code = doctor(arguments)
        return text

    return _printed(examine) or code


def _rendezvous(arguments: Sequence[str]) -> int:
    from edriver.rendezvous import command

    if arguments and arguments[0] == "status":
        return _printed(lambda: command.status(arguments[1:], time.time))
    return command.rendezvous(arguments)


def _credentials(arguments: Sequence[str]) -> int:
    from edriver.cli.credentials import credentials

    try:
        sys.stdout.write(f"{credentials(arguments)}\n")
    except OSError as error:
        complain(f"edriver credentials: {error.filename} cannot be written: {error.strerror}")
        return EXIT_FAILED
    return 0


def _checkpoint(arguments: Sequence[str]) -> int:
    from edriver.commands.checkpoint import CheckpointsUnreadableError, checkpoint

    try:
        return _printed(lambda: checkpoint(arguments))
    except CheckpointsUnreadableError as error:
        complain(f"edriver checkpoint: {error}")
        return EXIT_FAILED


def _kubernetes(arguments: Sequence[str]) -> int:
    import datetime

    from edriver.driver.engines.kubernetes.command import kubernetes
    from edriver.driver.services.run_credentials import RunCredentials

    def credentials() -> tuple[bytes, bytes]:
        made = RunCredentials.new(datetime.datetime.now(datetime.UTC))
        return made.for_driver(), made.for_agents()

    return kubernetes(arguments, credentials)


def _resume(arguments: Sequence[str]) -> int:
    from edriver.cli.resuming.resume import resume_run
    from edriver.driver.journal.journal import JournalError

    try:
        return resume_run(arguments)
    except JournalError as error:
        complain(f"edriver resume: {error}")
        return EXIT_FAILED


def _agent(arguments: Sequence[str]) -> int:
    from edriver.agent.dial_in import RunEndedError, join_config_of
    from edriver.agent.main import run_agent

    try:
        return run_agent(join_config_of(arguments))
    except RunEndedError as error:
        complain(f"edriver agent: {error}")
        return 0
    except (ValueError, OSError) as error:
        complain(f"edriver agent: {error}")
        return EXIT_USAGE


def _parser_in(module: str, *arguments: str) -> argparse.ArgumentParser:
    made: argparse.ArgumentParser = importlib.import_module(module).parser(*arguments)
    return made


def _shows(name: str, summary: str) -> Subcommand:
    return Subcommand(name, summary, partial(_show, name), partial(_parser_in, f"edriver.commands.{name}"))


def _steers(verb: str, summary: str) -> Subcommand:
    parser = partial(_parser_in, "edriver.commands.steer", verb)
    return Subcommand(verb, summary, partial(_steer, verb), parser)


GROUPS: Final[Mapping[str, Sequence[Subcommand]]] = {
    "show a run": (
        _shows("status", "show the state of a run, or list the runs in progress"),
        _shows("top", "show the state of a run in the terminal, live"),
        _shows("dashboard", "serve a web page that follows a run and compares runs"),
        Subcommand(
            "logs",
            "print the latest output of workers, also of those that have ended",
            _logs,
            partial(_parser_in, "edriver.commands.logs"),
        ),
        _shows("stack", "print where each thread of each worker is, without stopping it"),
        _shows("runs", "list your runs, also those that have ended"),
        _shows("export", "export reported values for TensorBoard, or as a table"),
        Subcommand(
            "checkpoint",
            "list the checkpoints that a script writes, or have a run write one now",
            _checkpoint,
            partial(_parser_in, "edriver.commands.checkpoint"),
        ),
        _shows("report", "write a report of a run as one HTML file"),
    ),
    "control a run": (
        _steers("drain", "stop using a host, or one of its slots, without losing a step"),
        _steers("undrain", "use a drained host, or one of its slots, again"),
        _steers("resize", "set the maximum number of workers"),
        _steers("stop", "end the run"),
        Subcommand(
            "resume",
            "take over a run whose driver was killed",
            _resume,
            partial(_parser_in, "edriver.cli.resuming.resume"),
        ),
    ),
    "set up": (
        Subcommand(
            "doctor",
            "check that this machine and others have what a run needs",
            _doctor,
            partial(_parser_in, "edriver.commands.doctor"),
        ),
        Subcommand(
            "agent",
            "join this host to a run with --hosts-dial-in",
            _agent,
            partial(_parser_in, "edriver.agent.dial_in"),
        ),
        Subcommand(
            "credentials",
            "make a run's credentials before it starts",
            _credentials,
            partial(_parser_in, "edriver.cli.credentials"),
        ),
        Subcommand(
            "kubernetes",
            "print what to apply to a Kubernetes cluster",
            _kubernetes,
            partial(_parser_in, "edriver.driver.engines.kubernetes.command"),
        ),
        Subcommand(
            "rendezvous",
            "serve torchrun --rdzv-backend=edriver",
            _rendezvous,
            partial(_parser_in, "edriver.rendezvous.command"),
        ),
    ),
}
"""All of them, by what they are for."""

SUBCOMMANDS: Final = {each.name: each for group in GROUPS.values() for each in group}
"""All of them, by name."""
