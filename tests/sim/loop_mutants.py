"""Wrong variants of the loop of a worker's rounds, each of which the simulation must catch: see mutants.py.

Most of them alter what the loop asks for: an effect is left out, or another one put in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import pytest

from edriver.model.ids import Version
from edriver.worker.rounds import effects
from edriver.worker.rounds.effects import Effect, Raised
from edriver.worker.rounds.participant import BoundaryVerdict, Participant, RoundLoop, Stage

Patch = Callable[[pytest.MonkeyPatch], None]
Steps = Generator[Effect, Any, Any]


def _alter(patch: pytest.MonkeyPatch, method: str, alter: Callable[[Participant, Effect], Steps]) -> None:
    """Let a method of the loop ask for what `alter` yields in the place of each effect; it returns the answer."""
    original = getattr(RoundLoop, method)

    def altered(self: RoundLoop, *args: Any) -> Steps:
        steps, answer = original(self, *args), None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as end:
                return end.value
            answer = yield from alter(self._participant, step)

    patch.setattr(RoundLoop, method, altered)


def _leave_out(patch: pytest.MonkeyPatch, method: str, kind: type[Effect], answer: Any = None) -> None:
    def alter(_participant: Participant, step: Effect) -> Steps:
        return answer if isinstance(step, kind) else (yield step)

    _alter(patch, method, alter)


def live_is_offered_where_torn(patch: pytest.MonkeyPatch) -> None:
    """A worker offers its last boundary though it goes back to its last commit."""
    original = RoundLoop._offer
    patch.setattr(RoundLoop, "_offer", lambda self, clean, *rest: original(self, True, *rest))


def nothing_is_restored(patch: pytest.MonkeyPatch) -> None:
    """A torn state is offered as its last commit, and stays as it is."""
    _leave_out(patch, "_go_back", effects.Restore)


def clean_is_restored(patch: pytest.MonkeyPatch) -> None:
    """A clean state is offered as its last boundary, and goes back to its last commit."""

    def alter(_participant: Participant, step: Effect) -> Steps:
        return (yield effects.Restore() if isinstance(step, effects.ReturnToBoundary) else step)

    _alter(patch, "_go_back", alter)


def going_back_comes_before_the_offer(patch: pytest.MonkeyPatch) -> None:
    """A worker asks whether its state is clean only after it was taken back."""
    original = RoundLoop._go_back

    def go_back(self: RoundLoop, raised: Raised) -> Steps:
        yield effects.Restore()
        yield from original(self, raised)

    patch.setattr(RoundLoop, "_go_back", go_back)


def done_before_it_has_trained(patch: pytest.MonkeyPatch) -> None:
    """A worker reports itself done before its last boundary."""

    def alter(participant: Participant, step: Effect) -> Steps:
        if isinstance(step, effects.Train):
            yield effects.Say(participant.done())
        return (yield step)

    _alter(patch, "_round", alter)


def done_ignores_aborts(patch: pytest.MonkeyPatch) -> None:
    """A worker that is done waits for the round's finish, whatever happens to the others."""

    def alter(participant: Participant, step: Effect) -> Steps:
        if isinstance(step, effects.WaitForChange):
            while participant.stage is Stage.DONE:
                yield step
            return None
        return (yield step)

    _alter(patch, "_round", alter)


def waiting_before_the_digest(patch: pytest.MonkeyPatch) -> None:
    """A worker reports itself waiting with the digest that it has offered last."""

    def offer(self: RoundLoop, clean: bool, torn: str = "", uncounted: int = 0) -> Generator[Effect, Any, Version]:
        participant = self._participant
        version = participant.live if clean else participant.committed
        last = getattr(self, "last_digest", "")
        yield effects.Say(participant.wait(version, self._store, last, torn, uncounted=uncounted))
        self.last_digest = yield effects.Digest(not clean)  # type: ignore[attr-defined]
        return version

    patch.setattr(RoundLoop, "_offer", offer)


def receivers_skip_the_sync(patch: pytest.MonkeyPatch) -> None:
    """A receiver trains on with what it has."""

    def alter(participant: Participant, step: Effect) -> Steps:
        place = participant.assignment
        if isinstance(step, effects.Sync) and place is not None and place.rank in place.receivers:
            return True
        return (yield step)

    _alter(patch, "_round", alter)


def every_sync_is_a_commit(patch: pytest.MonkeyPatch) -> None:
    """A holder takes its last commit, which is older, for the state at the round's beginning."""

    def alter(_participant: Participant, step: Effect) -> Steps:
        answer = yield step
        return True if isinstance(step, effects.Sync) and answer is False else answer

    _alter(patch, "_round", alter)


def a_swallowed_interrupt_is_forgiven(patch: pytest.MonkeyPatch) -> None:
    """A script that has caught what led it out of its round passes further boundaries of that round."""
    original = RoundLoop.boundary

    def boundary(self: RoundLoop) -> Steps:
        must_leave = self._participant.must_leave
        return BoundaryVerdict.PASS if must_leave else (yield from original(self))

    patch.setattr(RoundLoop, "boundary", boundary)


def an_interrupt_saves_nothing(patch: pytest.MonkeyPatch) -> None:
    """A state that no boundary keeps counts as committed at the agreed boundary, and is not."""
    _leave_out(patch, "_stop", effects.Save)


def an_interrupt_offers_the_last_commit(patch: pytest.MonkeyPatch) -> None:
    """A worker keeps its state at the agreed boundary, and offers an older one."""
    original = RoundLoop._offer

    def stop(self: RoundLoop) -> Steps:
        yield effects.Stopped(loss=False)
        yield from original(self, clean=False)

    patch.setattr(RoundLoop, "_stop", stop)


def an_interrupt_is_a_loss(patch: pytest.MonkeyPatch) -> None:
    """A worker goes back to its last commit where all have agreed to stop."""
    patch.setattr(RoundLoop, "_stop", lambda self: self._go_back(Raised.HOSTS_UPDATED))


def changes_between_runs_are_lost(patch: pytest.MonkeyPatch) -> None:
    """A worker enters the script's next `run` without marking what the script has done to its state since."""

    def enter(self: RoundLoop) -> Steps:
        self._participant.enter()
        yield from ()

    patch.setattr(RoundLoop, "enter", enter)


def severed_connections_are_the_scripts_own_error(patch: pytest.MonkeyPatch) -> None:
    """A RuntimeError in a round that has been aborted ends the worker."""
    patch.setattr(RoundLoop, "_is_loss", lambda self, raised: raised in (Raised.PEER_LOST, Raised.UNPROVEN))


def every_error_is_a_loss(patch: pytest.MonkeyPatch) -> None:
    """The script's own exception leads to another round of the same worker."""
    patch.setattr(RoundLoop, "_is_loss", lambda self, raised: True)


def a_loss_is_not_reported(patch: pytest.MonkeyPatch) -> None:
    """A worker whose collective has raised waits for the next round without reporting the error."""

    def alter(_participant: Participant, step: Effect) -> Steps:
        if isinstance(step, effects.Say) and not step.report.HasField("worker_waiting"):
            return None
        return (yield step)

    _alter(patch, "_go_back", alter)


def survivors_die_of_a_new_size(patch: pytest.MonkeyPatch) -> None:
    """A worker that has trained with fewer workers ends when its script fails with more."""
    patch.setattr(Participant, "grown", False)


LOOP_MUTANTS: tuple[Patch, ...] = (
    live_is_offered_where_torn,
    nothing_is_restored,
    clean_is_restored,
    going_back_comes_before_the_offer,
    done_before_it_has_trained,
    done_ignores_aborts,
    waiting_before_the_digest,
    receivers_skip_the_sync,
    every_sync_is_a_commit,
    a_swallowed_interrupt_is_forgiven,
    an_interrupt_saves_nothing,
    an_interrupt_offers_the_last_commit,
    an_interrupt_is_a_loss,
    changes_between_runs_are_lost,
    severed_connections_are_the_scripts_own_error,
    every_error_is_a_loss,
    a_loss_is_not_reported,
    survivors_die_of_a_new_size,
)
