"""`edriver --run NAME`: the same command line starts a run, and resumes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from edriver.cli.complaint import complain
from edriver.cli.exit_codes import EXIT_FAILED
from edriver.cli.resuming.resume import take_run_over
from edriver.driver.config.usage_error import UsageError
from edriver.driver.journal.journal import JournalError
from edriver.driver.journal.run_name import RunName, RunNameTakenError, check_run_name
from edriver.system.private_files import NotOwnError
from edriver.system.record_folder import JOURNAL_FILE


def hold_name(name: str, root: Path | None, *, resumable: bool) -> RunName:
    """The name, for this process alone.

    Args:
        name: what --run gives.
        root: the folder in which each run has one for its records; None: runs have none.
        resumable: whether the run keeps a journal.

    Raises:
        UsageError: it cannot be had.
    """
    if not resumable:
        raise UsageError("--run and --supervise resume a run from its journal: leave out --no-journal")
    if root is None:
        raise UsageError("--run needs the run's records: leave --no-records out, or name a folder (--records DIR)")
    try:
        return RunName(root, check_run_name(name))
    except (ValueError, RunNameTakenError) as error:
        raise UsageError(f"--run: {error}") from None
    except NotOwnError as error:
        raise UsageError(f"--run: {error}, or keep the records elsewhere (--records DIR)") from None
    except OSError as error:
        raise UsageError(f"--run: {error.filename or root} cannot be used: {error.strerror}") from None


def resume_named(
    name: RunName, arguments: Sequence[str], begin_anew: Callable[[], NoReturn] | None, *, verbose: bool
) -> int | None:
    """Take over the latest run of this name, if its driver was killed, and run it to its end.

    Args:
        name: the name.
        arguments: the command line.
        begin_anew: begins another run of this name, if a driver before was asked to end that one and was killed before
            it had: whoever gives the command line again wants to train. None: the run has ended.
        verbose: whether every event is logged.

    Returns:
        the exit code; None: that run has ended, or there was none.
    """
    if not name.run_id or not (journal := name.root / name.run_id / JOURNAL_FILE).is_file():
        return None
    try:
        ended = take_run_over(journal, arguments, verbose=verbose)
        if ended.stopped_before and begin_anew is not None:
            begin_anew()
        return ended.code
    except JournalError as error:
        complain(f"edriver: {error}")
        return EXIT_FAILED
