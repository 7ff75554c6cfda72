"""`edriver -np ...`: start a run or, if there is one of its name whose driver is gone, continue with that."""

from __future__ import annotations

import argparse
import logging
import os
import secrets
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn, TypeAlias

from edriver.cli.complaint import complain
from edriver.cli.resuming.started_again import STARTED_AGAIN
from edriver.cli.torchrun_flags import ignored_variables
from edriver.driver.config.options import RunOptions, options_of, takes_all_slots
from edriver.driver.config.usage_error import UsageError
from edriver.driver.journal.journal import Head, Journal
from edriver.driver.journal.run_name import RunName
from edriver.driver.journal.sqlite_journal import SqliteJournal
from edriver.driver.observe.console.output import ROUTINE, Output, has_colours
from edriver.system.record_folder import JOURNAL_FILE, make

BeginJournal: TypeAlias = Callable[[Head], Journal]


def run_or_resume(flags: argparse.Namespace, options: RunOptions, arguments: Sequence[str]) -> int:
    """Run to the end; returns the exit code.

    Args:
        flags: the parsed command line.
        options: what they come to.
        arguments: the command line, for a driver that takes the run over.

    Raises:
        UsageError: there is something wrong with the flags.
        JournalError: the run's journal cannot be had.
    """
    if flags.etcd is None and flags.standby:
        raise UsageError("--standby is for drivers that share a journal: give --etcd, too")
    started_again = os.environ.pop(STARTED_AGAIN, None) is not None
    named = flags.etcd is not None or flags.run is not None
    begin_anew = _command_again(arguments) if named and not (started_again or flags.standby) else None
    if flags.etcd is not None:
        from edriver.cli.resuming.etcd_run import go_on, journal_in_etcd, lead

        journal = journal_in_etcd(flags, os.environ)
        try:
            if not lead(journal, flags.run, standby=flags.standby):
                return 0
        except KeyboardInterrupt:
            return 128 + signal.SIGINT
        if journal.holds_run:
            return go_on(journal, begin_anew, port=options.port, verbose=options.verbose)
        return _start(flags, options, arguments, None, journal.begin)
    if flags.run is not None:
        from edriver.cli.resuming.named_run import hold_name, resume_named

        name = hold_name(flags.run, options.records, resumable=not flags.no_journal)
        if (code := resume_named(name, arguments, begin_anew, verbose=options.verbose)) is not None:
            return code
        return _start(flags, options, arguments, name, None)
    return _start(flags, options, arguments, None, None)


def _command_again(arguments: Sequence[str]) -> Callable[[], NoReturn] | None:
    """What gives this process's command line again, from where it is now; None: another program's called `main`."""
    given = sys.argv[1:]
    if given[len(given) - len(arguments) :] != list(arguments):
        return None
    directory, environ = Path.cwd(), {**os.environ, STARTED_AGAIN: "1"}

    def give() -> NoReturn:
        complain("edriver: another run of this name begins: the last one had been asked to end")
        sys.stdout.flush()
        os.chdir(directory)
        # A run leaves its mark on a process: on signals, logging, metrics. The next one has a new one of the same ID.
        os.execve(sys.executable, [sys.executable, "-m", "edriver", *given], environ)  # noqa: S606

    return give


def _start(
    flags: argparse.Namespace,
    options: RunOptions,
    arguments: Sequence[str],
    name: RunName | None,
    begin_journal: BeginJournal | None,
) -> int:
    if takes_all_slots(flags):
        from edriver.cli.all_slots import with_counted_slots

        flags, arguments = with_counted_slots(flags, options, arguments)
        options = options_of(flags)
    run_id = options.run_credentials.run_id if options.run_credentials else secrets.token_hex(4)
    records, no_records = _records_of(options, run_id)
    if no_records and options.records_asked:
        raise UsageError(f"--records: {no_records}")
    if records is not None and name is not None:
        name.give_to(run_id)
    output = Output(colours=has_colours(2, os.environ))
    quiet = logging.INFO if options.calls_function else ROUTINE
    output.handle_logs(logging.DEBUG if options.verbose else quiet)
    log = logging.getLogger("edriver")
    log.info("run %s: %s", run_id, options if options.calls_function else f"{options}; {options.mode}")
    if records:
        log.log(ROUTINE, "records: %s", records)
    if ignored := ignored_variables(os.environ):
        log.warning(
            "%s: set for torchrun, and ignored here: -np gives the number of workers, -H or --host-discovery-script "
            "their hosts, and the driver is the rendezvous",
            ", ".join(ignored),
        )
    if no_records and not flags.no_records:
        log.warning("the run keeps no records: %s (--records DIR has them elsewhere)", no_records)
    if begin_journal is None and records is not None:
        begin_journal = _in_records(records)
    try:
        from edriver.driver.run.session import run

        if options.dial_in is not None and flags.credentials is None:  # the engine's agents know this file
            arguments = ["--credentials", str(options.dial_in), *arguments]
        return run(options, run_id, output, records, arguments, begin_journal if options.resumable else None)
    finally:
        output.close()


def _records_of(options: RunOptions, run_id: str) -> tuple[Path | None, str]:
    """The folder of the run's records, or why there is none."""
    if options.records is None:
        return None, "your home directory cannot be determined"
    try:
        return make(options.records, run_id), ""
    except OSError as error:
        return None, f"{error.filename or options.records} cannot be made: {error.strerror}"


def _in_records(records: Path) -> BeginJournal:
    return lambda head: SqliteJournal.create(records / JOURNAL_FILE, head)
