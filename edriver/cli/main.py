"""The command line: `edriver -np 4 --host-discovery-script ./hosts.sh python train.py`, and `edriver WORD`.

Kept light: what takes long to import is imported once the first line has been printed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from edriver.cli import run_flags
from edriver.cli.complaint import complain
from edriver.cli.exit_codes import EXIT_FAILED
from edriver.cli.hints import hint_of, refusal_of
from edriver.cli.subcommands import GROUPS, SUBCOMMANDS
from edriver.common.extras import missing_extra
from edriver.system.descriptors import raise_limit
from edriver.wire.grpc_log import silence_grpc

_DESCRIPTION_TEXT = """\
Elastic training for PyTorch: starts the command once per slot and keeps training,
in the same processes, while hosts are added, removed or lost.
"""


def _subcommands_text() -> str:
    width = max(map(len, SUBCOMMANDS)) + 2
    lines: list[str] = []
    for title, group in GROUPS.items():
        lines += [f"{title}:", *(f"  {each.name:{width}}{each.summary}" for each in group)]
    return "\n".join([*lines, "", "See edriver COMMAND --help for the arguments and flags of each."])


def parser(environ: Mapping[str, str] | None = None) -> run_flags.RunParser:
    """The flags of a run and its command, and a help that names the subcommands, too.

    Args:
        environ: where torchrun's variables are flags that were not given; None: nowhere.
    """
    return run_flags.parser(environ, f"{_DESCRIPTION_TEXT}\n{_subcommands_text()}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    silence_grpc()
    try:
        raise_limit()
    except ValueError as error:
        complain(f"edriver: {error}")
        return EXIT_FAILED
    first = arguments[0] if arguments else ""
    if first in SUBCOMMANDS:
        return SUBCOMMANDS[first].run(arguments[1:])
    if first == "help":
        return main([*arguments[1:2], "--help"])
    if first == "run":
        arguments = arguments[1:]
    top = run_flags.parser(os.environ, _DESCRIPTION_TEXT) if first == "run" else parser(os.environ)
    top.helps_briefly = first != "run"
    flags, unknown = top.parse_known_args(arguments)
    if flags.version:
        return _print_version()
    if flags.print_completion:
        if missing := missing_extra("--print-completion", "shtab", "completion"):
            top.error(missing)
        return _print_completion(flags.print_completion)
    if unknown:
        top.error(refusal_of(unknown[0], [name for flag in run_flags.all_flags() for name in flag.names]))

    if flags.supervise:
        from edriver.cli.resuming.supervise import driver_arguments, supervise

        return supervise(driver_arguments(arguments, named=flags.run is not None))

    if flags.np is None and flags.slots_per_host is None and (hint := hint_of(flags.command)):
        top.error(hint)

    from edriver.driver.config.options import options_of, takes_all_slots
    from edriver.driver.config.usage_error import UsageError
    from edriver.driver.journal.journal import JournalError

    try:
        options = options_of(flags)
    except UsageError as error:
        top.error(str(error))

    if flags.explain:
        from edriver.cli.all_slots import with_counted_slots
        from edriver.cli.explain import explanation

        if takes_all_slots(flags):
            try:
                options = options_of(with_counted_slots(flags, options, arguments)[0])
            except UsageError as error:
                top.error(str(error))
        sys.stdout.write(f"{explanation(top, arguments, options)}\n")
        return 0

    from edriver.cli.run import run_or_resume

    try:
        return run_or_resume(flags, options, arguments)
    except (JournalError, UsageError) as error:
        top.error(str(error))


def _print_version() -> int:
    from edriver.common.release import VERSION

    sys.stdout.write(f"edriver {VERSION}\n")
    return 0


def _print_completion(shell: str) -> int:
    from edriver.cli.completion import completion

    sys.stdout.write(completion(shell))
    return 0
