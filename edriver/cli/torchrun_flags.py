"""torchrun's flags about the output of workers, for scripts in restart mode."""

from __future__ import annotations

import argparse

TORCHRUN_GROUP = "output of workers in restart mode (torchrun's flags)"


def add_torchrun_flags(group: argparse._ArgumentGroup) -> None:
    """Add them. What they are given is judged by edriver.driver.options."""
    group.add_argument(
        "--log-dir",
        metavar="DIR",
        help="where each host writes its workers' files: DIR/RUN_HOST/attempt_N/LOCAL_RANK/stdout.log, stderr.log and "
        "error.json (default, if there are any: a folder for temporary files of each host)",
    )
    group.add_argument(
        "-r",
        "--redirects",
        metavar="STREAMS",
        help="write these streams to files only: 1 stdout, 2 stderr, 3 both; or by local rank, as in 0:3,1:2",
    )
    group.add_argument("-t", "--tee", metavar="STREAMS", help="write these streams to files, and print them, too")
    group.add_argument(
        "--local-ranks-filter", metavar="RANKS", help="print the output of these local ranks alone, as in 0,1"
    )
