"""torchrun's flags and variables: those that have a meaning here, and what to use in place of the others."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any, Final

from edriver.driver.config.flag import Flag

VARIABLES: Final = {
    "slots_per_host": "PET_NPROC_PER_NODE",
    "reset_limit": "PET_MAX_RESTARTS",
    "module": "PET_MODULE",
    "no_python": "PET_NO_PYTHON",
    "log_dir": "PET_LOG_DIR",
    "redirects": "PET_REDIRECTS",
    "tee": "PET_TEE",
    "local_ranks_filter": "PET_LOCAL_RANKS_FILTER",
}
"""Variables that torchrun reads in place of flags, as Kubeflow sets them, by where argparse puts the flag's value."""


COMMAND_FLAGS: Final = (
    Flag("-m", "--module", action="store_true", help="the command is the name of a Python module and its arguments"),
    Flag(
        "--no-python",
        action="store_true",
        help="the command is not a Python script and expects the variables that torchrun sets, such as RANK: run it in "
        "restart mode",
    ),
)
"""Those of what the command is. edriver takes a whole command, `python train.py`."""


def take_variables(parser: argparse.ArgumentParser, environ: Mapping[str, str]) -> None:
    """Have torchrun's variables count where their flag is not given. One that is empty is not set."""
    actions = {action.dest: action for action in parser._actions}
    found = {name: environ[variable] for name, variable in VARIABLES.items() if environ.get(variable)}
    for name, text in found.items():
        try:
            value = _value(actions[name], text)
        except (ValueError, argparse.ArgumentTypeError) as error:
            flag = actions[name].option_strings[-1]
            parser.error(f"the variable {VARIABLES[name]} cannot be used as {flag}: {error}")
        parser.set_defaults(**{name: value})
    parser.set_defaults(variables={name: VARIABLES[name] for name in found})


def _value(action: argparse.Action, text: str) -> Any:
    if action.nargs == 0:
        return bool(int(text))  # as torchrun reads it
    return text if action.type is None else action.type(text)  # type: ignore[operator]  # ours are functions


def ignored_variables(environ: Mapping[str, str]) -> list[str]:
    """The variables of torchrun that are set, and have no effect here."""
    names = {f"PET_{flag.strip('-').replace('-', '_').upper()}" for flag in INSTEAD}
    return sorted(name for name in names if environ.get(name))


OUTPUT_FLAGS: Final = (
    Flag(
        "--log-dir",
        metavar="DIR",
        help="where each host writes the files of its workers: stdout.log, stderr.log and error.json in "
        "DIR/RUN_HOST/attempt_N/LOCAL_RANK/ (default, if files are written: a temporary folder on each host)",
    ),
    Flag(
        "-r",
        "--redirects",
        metavar="STREAMS",
        help="write these streams to files only: 1 stdout, 2 stderr, 3 both; or by local rank, for example 0:3,1:2",
    ),
    Flag("-t", "--tee", metavar="STREAMS", help="write these streams to files and also print them"),
    Flag("--local-ranks-filter", metavar="RANKS", help="print only the output of these local ranks, for example 0,1"),
)
"""Those of where output goes. What they are given is judged by edriver.driver.config.options."""


_RENDEZVOUS: Final = "the driver is the rendezvous, and rank 0's host the master"
_FILTERS: Final = "keep the streams in files (--redirects, --tee) and grep these"

INSTEAD: Final = {
    "--duplicate-stdout-filters": _FILTERS,
    "--duplicate-stderr-filters": _FILTERS,
    "--event-log-handler": "--event-log writes what happens to a file",
    "--local-addr": "--network-interface says through which interface hosts reach one another",
    "--log-line-prefix-template": "printed lines begin with the rank; --redirects writes them to files, without it",
    "--logs-specs": "--log-dir, --redirects, --tee and --local-ranks-filter say where output goes",
    "--master-addr": _RENDEZVOUS,
    "--master-port": _RENDEZVOUS,
    "--monitor-interval": "edriver notices the end of a process immediately",
    "--nnodes": "-np, --min-np and --max-np count workers; -H, --hostfile or --host-discovery-script say where",
    "--node-rank": _RENDEZVOUS,
    "--numa-binding": "bind the process in the script, by os.sched_setaffinity",
    "--rdzv-backend": _RENDEZVOUS,
    "--rdzv-conf": _RENDEZVOUS,
    "--rdzv-endpoint": _RENDEZVOUS,
    "--rdzv-id": _RENDEZVOUS,
    "--role": "all workers have torchrun's default role",
    "--run-path": "end with `python script.py ...`",
    "--shutdown-timeout": "a process that is stopped has 30 s to exit",
    "--signals-to-handle": "SIGINT, SIGTERM and SIGHUP end the run gracefully",
    "--standalone": "without -H and the like all workers are on this machine",
    "--start-method": "each worker is a separate process, never forked",
    "--virtual-local-rank": "with edriver.run each slot sees one GPU; else set CUDA_VISIBLE_DEVICES in the script",
}
"""Flags of torchrun that edriver does not have, and what to use instead. It takes them with underscores, too."""
