"""The process of a worker in restart mode: `python -m edriver.worker.restart [-m] SCRIPT ARGUMENT ...`.

Or `-- PROGRAM ARGUMENT ...`, for a program that is no Python script.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from edriver.common.standby import IMPORTS_VARIABLE
from edriver.worker.restart import standby
from edriver.worker.restart.environment import torchrun_environment
from edriver.worker.restart.program import end_with, run_program
from edriver.worker.restart.quick_end import QuickEnd
from edriver.worker.restart.script import run_script


def main() -> None:
    """Wait for a place, take what torchrun's scripts expect into the environment, run the script, and end with it."""
    words = sys.argv[1:]
    end = QuickEnd()  # before anything else registers exit hooks
    imports = Path(os.environ[IMPORTS_VARIABLE])
    standby.preload(imports)

    from edriver.worker.backend.thread_count import ThreadCount
    from edriver.worker.restart import (
        destroyed_group,
        fresh_start,
        script_rendezvous,
        spawned,
        tensorflow_cluster,
        whole_saves,
    )
    from edriver.worker.restart.first_step import take_first_step
    from edriver.worker.restart.one_round import OneRound

    if words[0] != "--":  # what is no Python takes its steps elsewhere
        take_first_step()
    standby.become_worker(imports)
    worker = OneRound(os.environ, end)
    assignment = worker.place()
    if assignment is None:
        return
    ThreadCount(os.environ["EDRIVER_STORE"]).follow(assignment)
    place = torchrun_environment(assignment, os.environ)
    os.environ.update(place)
    if words[0] == "--":
        with worker.ending():
            ending = run_program(words[1:])
            if ending.code:
                worker.program_failed(stopped=ending.stopped)
                end_with(ending.code)
        return
    worker.remember_imports(imports, place)
    destroyed_group.keep()
    script_rendezvous.lead_to_round(assignment.store, assignment.size)
    spawned.refuse_unguarded()
    whole_saves.end_after_save()
    fresh_start.watch(assignment.round_id.n, assignment.rank)
    cluster = tensorflow_cluster.member(
        assignment, lambda: worker.store_of(assignment), os.environ["EDRIVER_ADDRESS"], os.environ
    )
    worker.begins(words)
    with worker.ending(), cluster:
        run_script(words)


if __name__ == "__main__":
    main()
