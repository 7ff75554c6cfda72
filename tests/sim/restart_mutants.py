"""Wrong variants of the core in restart mode, each of which its simulation must catch: see mutants.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from edriver.driver.core.cause import Cause, CauseKind
from edriver.driver.core.failures.new_sizes import NewSizes
from edriver.driver.core.failures.worker_losses import WorkerLosses
from edriver.driver.core.rounds.agreed_restart import AgreedRestarts
from edriver.driver.core.rounds.round_watch import RoundWatch

Patch = Callable[[pytest.MonkeyPatch], None]


def old_processes_are_not_stopped(patch: pytest.MonkeyPatch) -> None:
    """A round that is over leaves its processes alone."""
    patch.setattr(WorkerLosses, "_stop_members", lambda _self, _current: None)


def old_processes_are_not_waited_for(patch: pytest.MonkeyPatch) -> None:
    """The next round forms while processes of the last one still end."""
    original = WorkerLosses._stop_members

    def stop_members(self: WorkerLosses, current: Any) -> None:
        original(self, current)
        current.rejoin_deadline = self._run.now

    patch.setattr(WorkerLosses, "_stop_members", stop_members)


def an_ended_script_completes_the_run(patch: pytest.MonkeyPatch) -> None:
    """A member that fails counts as one that has run its whole script."""
    patch.setattr(WorkerLosses, "exited", lambda self, worker, event: self._has_run(worker))


def a_saved_checkpoint_is_not_waited_for(patch: pytest.MonkeyPatch) -> None:
    """After an agreed resize all are stopped at once."""

    def look(self: AgreedRestarts, current: Any, _interrupt: Any) -> None:
        assert self._cause is not None
        self._losses.abort(current, self._cause)

    patch.setattr(AgreedRestarts, "look", look)


def a_save_is_not_heard_of(patch: pytest.MonkeyPatch) -> None:
    """CheckpointSaved is ignored: every agreed restart lasts as long as its bound."""
    original = AgreedRestarts.look

    def look(self: AgreedRestarts, current: Any, interrupt: Any) -> None:
        interrupt.saved.clear()
        original(self, current, interrupt)

    patch.setattr(AgreedRestarts, "look", look)


def a_resize_is_a_failure(patch: pytest.MonkeyPatch) -> None:
    """A change of the members spends --max-restarts."""
    patch.setattr(RoundWatch, "_change_of", lambda *_: Cause(CauseKind.LEFT_ROUND))


def a_resize_stops_scripts_that_are_done(patch: pytest.MonkeyPatch) -> None:
    """A newcomer restarts the others when some have run the whole script: it may go on for ever."""
    original = RoundWatch.running

    def running(self: RoundWatch, current: Any) -> None:
        done, current.done = current.done, {} if current.done.keys() != current.members else current.done
        original(self, current)
        current.done = done

    patch.setattr(RoundWatch, "running", running)


def a_failed_size_is_tried_until_the_run_ends(patch: pytest.MonkeyPatch) -> None:
    """Rounds of a size with which all raise are tried until the same error ends the run."""
    patch.setattr(NewSizes, "most", property(lambda self: self.limit))
    patch.setattr(NewSizes, "allowed", lambda self, count: min(count, self.limit))


RESTART_MUTANTS: list[Patch] = [
    old_processes_are_not_stopped,
    old_processes_are_not_waited_for,
    an_ended_script_completes_the_run,
    a_saved_checkpoint_is_not_waited_for,
    a_save_is_not_heard_of,
    a_resize_is_a_failure,
    a_resize_stops_scripts_that_are_done,
    a_failed_size_is_tried_until_the_run_ends,
]
