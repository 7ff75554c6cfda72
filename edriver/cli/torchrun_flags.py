"""torchrun's flags about the output of workers, for scripts in restart mode; and those that edriver does not have."""

from __future__ import annotations

import argparse
from typing import Final

TORCHRUN_GROUP = "output of workers in restart mode (torchrun's flags)"


def add_torchrun_flags(group: argparse._ArgumentGroup) -> None:
    """Add them. What they are given is judged by edriver.driver.options."""
    group.add_argument(
        "--log-dir",
        metavar="DIR",
        help="where each host writes the files of its workers: stdout.log, stderr.log and error.json in "
        "DIR/RUN_HOST/attempt_N/LOCAL_RANK/ (default, if files are written: a temporary folder on each host)",
    )
    group.add_argument(
        "-r",
        "--redirects",
        metavar="STREAMS",
        help="write these streams to files only: 1 stdout, 2 stderr, 3 both; or by local rank, for example 0:3,1:2",
    )
    group.add_argument("-t", "--tee", metavar="STREAMS", help="write these streams to files and also print them")
    group.add_argument(
        "--local-ranks-filter", metavar="RANKS", help="print only the output of these local ranks, for example 0,1"
    )


_RENDEZVOUS: Final = "the driver is the rendezvous, and rank 0's host the master"
_FILTERS: Final = "keep the streams in files (--redirects, --tee) and grep these"
_MODULE: Final = "end with `python -m MODULE ...`"

INSTEAD: Final = {
    "--duplicate-stdout-filters": _FILTERS,
    "--duplicate-stderr-filters": _FILTERS,
    "--event-log-handler": "--event-log writes what happens to a file",
    "--local-addr": "--network-interface says through which interface hosts reach one another",
    "--log-line-prefix-template": "printed lines begin with the rank; --redirects writes them to files, without it",
    "--logs-specs": "--log-dir, --redirects, --tee and --local-ranks-filter say where output goes",
    "--master-addr": _RENDEZVOUS,
    "--master-port": _RENDEZVOUS,
    "--module": _MODULE,
    "-m": _MODULE,
    "--monitor-interval": "the end of a process is noticed at once",
    "--nnodes": "-np, --min-np and --max-np count workers; -H, --hostfile or --host-discovery-script say where",
    "--no-python": "programs that are no Python scripts are run as they are, but not in restart mode",
    "--node-rank": _RENDEZVOUS,
    "--nproc-per-node": "-np counts all workers; the slots of a host are given with it, as in -H a:8,b:8",
    "--numa-binding": "bind the process in the script, by os.sched_setaffinity",
    "--rdzv-backend": _RENDEZVOUS,
    "--rdzv-conf": _RENDEZVOUS,
    "--rdzv-endpoint": _RENDEZVOUS,
    "--rdzv-id": _RENDEZVOUS,
    "--role": "all workers have torchrun's default role",
    "--run-path": "end with `python script.py ...`",
    "--shutdown-timeout": "a process that is stopped has 30 s",
    "--signals-to-handle": "SIGINT, SIGTERM and SIGHUP end the run in good order",
    "--standalone": "without -H and the like all workers are on this machine",
    "--start-method": "workers are processes of their own, never forked",
    "--virtual-local-rank": "with edriver.run each slot sees one GPU; else set CUDA_VISIBLE_DEVICES in the script",
}
"""Flags of torchrun that edriver does not have, and what to use instead. It takes them with underscores, too."""
