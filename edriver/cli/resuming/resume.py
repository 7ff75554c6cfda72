"""`edriver resume`: take a run over whose driver is gone."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from edriver.driver.journal.journal import Journal, JournalError
from edriver.driver.journal.sqlite_journal import SqliteJournal
from edriver.system.record_folder import JOURNAL_FILE, called, default_root, is_run_id, recorded_names
from edriver.text.command_parser import CommandParser
from edriver.text.phrases import runs_text
from edriver.text.suggestion import did_you_mean_run
from edriver.wire.grpc_log import silence_grpc

if TYPE_CHECKING:
    from edriver.driver.config.options import RunOptions
    from edriver.driver.run.session import Ended


def parser() -> argparse.ArgumentParser:
    """The flags."""
    made = CommandParser(
        prog="edriver resume",
        description="Takes over a run whose driver was killed, or whose machine was restarted. Its workers keep "
        "running; the "
        "command line, the folder and the environment are those of the first driver.",
    )
    made.add_argument(
        "run",
        metavar="RUN",
        nargs="?",
        help="the run's name or ID, or the folder with its records (default: the one run of yours that can be resumed)",
    )
    made.add_argument("--verbose", action="store_true", help="log every event and every action of the driver")
    return made


def journal_of(named: str | None, environ: Mapping[str, str]) -> Path:
    """Return the path of a run's journal.

    Args:
        named: its ID or its name, or the folder with its records; None: the only run that has one.
        environ: the environment.

    Raises:
        JournalError: the run does not exist, or there are several.
    """
    if named is not None and (Path(named) / JOURNAL_FILE).is_file():
        return Path(named) / JOURNAL_FILE
    try:
        root = default_root(environ)
    except RuntimeError as error:
        raise JournalError(f"{error}: give the folder with the run's records") from None
    names = {path.parent.name: "" for path in sorted(root.glob(f"*/{JOURNAL_FILE}"))}
    names |= {run_id: name for run_id, name in recorded_names(root).items() if run_id in names}
    found = list(names) if named is None else called(named, names)
    if not found and named is not None:
        why = did_you_mean_run(named, names) or ": it has ended, or its records are elsewhere (give their folder)"
        raise JournalError(f"no run {named!r} can be resumed{why}")
    if not found:
        raise JournalError(f"no run in {root} can be resumed: those that were there have ended")
    if len(found) > 1:
        raise JournalError(
            f"several runs could be resumed, or still have their driver: say which of {runs_text(found, names)}"
        )
    return root / found[0] / JOURNAL_FILE


def resume_run(arguments: Sequence[str]) -> int:
    """Take it over, and run it to its end; returns the exit code.

    Raises:
        JournalError: that cannot be done.
    """
    flags = parser().parse_args(arguments)
    return take_run_over(journal_of(flags.run, os.environ), verbose=flags.verbose).code


def take_run_over(path: Path, arguments: Sequence[str] | None = None, *, verbose: bool) -> Ended:
    """Take over the run with this journal, and run it to its end.

    Args:
        path: the journal.
        arguments: see `go_on_with`.
        verbose: see `go_on_with`.

    Raises:
        JournalError: the run cannot be taken over.
    """
    path = path.resolve()
    folder = path.parent
    journal = SqliteJournal.take_over(path, folder.name if is_run_id(folder.name) else "")
    return go_on_with(journal, lambda _options, _run_id: folder, arguments, verbose=verbose)


def go_on_with(
    journal: Journal,
    records_of: Callable[[RunOptions, str], Path | None],
    arguments: Sequence[str] | None = None,
    *,
    verbose: bool,
    port: int = 0,
) -> Ended:
    """Go on with the run whose journal this is, to its end.

    Args:
        journal: the journal.
        records_of: finds the folder of the run's records, by its options and its ID.
        arguments: the command line that asks for this run (--run); None: none does.
        verbose: whether every event is logged.
        port: where this driver is to listen; 0: where the last one did.

    Raises:
        JournalError: that cannot be done.
    """
    head = journal.head

    from edriver.cli.run_flags import parser as run_parser
    from edriver.driver.config.options import options_of
    from edriver.driver.config.usage_error import UsageError
    from edriver.driver.engines.last_run import last_run
    from edriver.driver.observe.console.output import ROUTINE, Output, has_colours

    engine = last_run(os.environ)
    environment = engine.present_environment(head.environment, os.environ)
    _enter(head.directory, environment)
    try:
        options = options_of(run_parser(environment).parse_known_args(head.arguments)[0])
    except SystemExit:
        raise journal.damaged("its command line is invalid") from None
    except UsageError as error:
        raise JournalError(f"the run's command line is no longer valid: {error}") from None
    output = Output(colours=has_colours(2, os.environ))
    output.handle_logs(logging.DEBUG if verbose else ROUTINE)
    if arguments is not None and head.arguments[-len(arguments) :] != tuple(arguments):
        logging.getLogger("edriver").warning(
            "the run was started with other arguments, and continues with those: edriver %s", shlex.join(head.arguments)
        )
    try:
        from edriver.driver.run.session import resume

        records = records_of(options, head.run_id)
        agents_gone = asyncio.run(engine.why_agents_are_gone(head.environment, environment, options.launcher_name))
        return resume(options, journal, records, output, environment, port=port, agents_gone=agents_gone)
    finally:
        output.close()


def _enter(directory: str, environment: Mapping[str, str]) -> None:
    """Have this process be where the first driver was: all that a run does reads the environment and the folder.

    Raises:
        JournalError: the folder cannot be entered.
    """
    try:
        os.chdir(directory)
    except OSError as error:
        raise JournalError(f"the run's folder {directory} cannot be entered: {error.strerror}") from None
    os.environ.clear()
    os.environ.update(environment)
    silence_grpc()
