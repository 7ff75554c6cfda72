"""Whether a wrong variant is noticed: by the simulation, at which seeds, or by a case of tests/script."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import pytest

from tests.script.case import CASES
from tests.script.interpreter import rewritten
from tests.sim.faults import Nemesis
from tests.sim.mutants import Patch
from tests.sim.restart_world import RestartNemesis

MUTANT_SEEDS = 2000
RESTART_SEEDS = 600

NOTICED_BY = {
    "a_failure_ends_the_wait_for_replacements": 1178,
    "a_failed_size_is_tried_until_the_run_ends": 404,
    "a_loss_is_not_reported": 10,
    "a_resize_stops_scripts_that_are_done": 40,
    "a_snapshot_is_taken_before_its_last_event": 1,
    "a_swallowed_interrupt_is_forgiven": 23,
    "agreed_ends_are_not_counted": 2,
    "an_ended_script_completes_the_run": 98,
    "an_interrupt_is_a_loss": 167,
    "an_interrupt_offers_the_last_commit": 13,
    "an_interrupt_saves_nothing": 23,
    "an_open_interrupt_is_forgotten": 497,
    "boundaries_count_before_the_sync": 39,
    "bugs_are_retried_for_ever": 6,
    "changes_between_runs_are_lost": 23,
    "checkpoints_are_forgotten": 5,
    "checkpoints_are_not_looked_for_again": 69,
    "clean_is_restored": 6,
    "discovery_is_not_written": 1,
    "done_ignores_aborts": 94,
    "drained_workers_do_not_wait": 45,
    "drained_workers_stay_for_ever": 490,
    "draws_begin_anew": 15,
    "events_after_a_snapshot_are_left_out": 10,
    "events_are_replayed_at_the_time_of_the_replay": 15,
    "every_error_is_a_loss": 6,
    "every_error_is_the_same": 6,
    "every_sync_is_a_commit": 132,
    "going_back_comes_before_the_offer": 6,
    "later_calls_start_unsynced": 16,
    "live_is_offered_where_torn": 23,
    "members_do_not_wait_for_the_verdict": 35,
    "newcomers_are_never_at_fault": 330,
    "newcomers_can_take_over": 321,
    "newcomers_do_not_wait": 8,
    "no_state_keeper_stays": 19,
    "nothing_is_restored": 23,
    "one_accident_is_a_bug": 7,
    "only_newcomers_receive": 16,
    "outlived_slots_are_kept": 25,
    "quarantine_stops_the_run": 49,
    "rank_zero_by_age_alone": 120,
    "ranks_follow_the_hosts_alone": 46,
    "replayed_orders_are_given_again": 1,
    "rounds_form_before_all_have_stopped": 91,
    "scratch_is_as_good_as_state": 5,
    "severed_connections_are_the_scripts_own_error": 5,
    "sizes_that_fail_are_tried_for_ever": 155,
    "shards_before_are_forgotten": 367,
    "stop_at_the_highest_report": 83,
    "stop_at_the_lowest_report": 204,
    "stop_overrides_abort": 738,
    "survivors_are_not_notified": 6,
    "survivors_die_of_a_new_size": 284,
    "suspects_are_never_killed": 101,
    "the_last_event_is_not_written": 1,
    "the_second_stall_at_a_place_ends_the_run": 423,
    "the_size_is_to_blame_for_every_error": 51,
    "ticks_are_not_written": 12,
    "torn_state_counts_as_clean": 132,
    "torn_state_is_offered": 23,
    "uneven_steps_are_tried_for_ever": 82,
    "uneven_steps_are_waited_out": 82,
    "unproven_connections_are_a_bad_link": 19,
    "versions_by_count_alone": 7,
    "without_a_driver_none_are_freed": 251,
}
"""For mutants that the first seeds do not catch: one that does. If it no longer does, the test searches for another:
`python -m tests.sim.noticed` finds out for which, and prints a new one.
"""

NOTICED_IN_CASE = {
    "a_late_offer_has_seen_every_checkpoint": "checkpoint_offer_is_late.txt",
    "a_broken_replicas_member_is_as_good": "elastic_replicas_after_a_kill.txt",
    "a_half_takes_the_place_of_a_whole_replica": "replicas_move_to_a_spare_host.txt",
    "broken_first_syncs_count": "elastic_replicas_and_a_broken_first_sync.txt",
    "bugs_that_take_turns_are_retried_for_ever": "errors_that_take_turns.txt",
    "done_is_no_report": "done_is_a_report.txt",
    "late_offers_of_an_undone_sync_count": "elastic_replicas_and_a_broken_first_sync.txt",
    "members_that_stop_are_not_waited_for": "a_wait_for_a_member_that_computes_is_not_cut.txt",
    "newcomers_hold_up_the_first_for_ever": "newcomers_hold_up_the_first_for_ten_windows.txt",
    "newcomers_interrupt_others_that_have_just_joined": "newcomers_leave_time_to_train.txt",
    "quarantine_is_for_good": "host_is_quarantined.txt",
    "quiet_is_for_good": "quiet_worker_answers.txt",
    "spares_stay_for_ever": "elastic_replicas_and_a_resize.txt",
    "silence_breaks_no_round": "agent_silent.txt",
}
"""For mutants that one seed in thousands catches, so that any change of the random draws would hide them: the case of
tests/script that comes to what the seeds seldom come to.
"""


def nemesis(seed: int, replica_sizes: Sequence[int] = (1,), all_share: float = 0.0) -> Nemesis:
    return Nemesis(seed, replica_sizes=replica_sizes, all_share=all_share)


def assert_noticed(
    mutant: Patch, patch: pytest.MonkeyPatch, replica_sizes: Sequence[int] = (1,), all_share: float = 0.0
) -> None:
    """Fail if the simulation of replicas of these sizes, or its case of tests/script, stays green with this wrong
    variant.
    """
    mutant(patch)
    _search(mutant, MUTANT_SEEDS, lambda seed: nemesis(seed, replica_sizes, all_share).run())


def assert_noticed_in_restart_mode(mutant: Patch, patch: pytest.MonkeyPatch) -> None:
    """Fail if the simulation of restart mode, or its case, stays green with this wrong variant."""
    mutant(patch)
    _search(mutant, RESTART_SEEDS, lambda seed: RestartNemesis(seed).run())


def _search(mutant: Patch, seeds: int, run: Callable[[int], object]) -> None:
    if case := NOTICED_IN_CASE.get(mutant.__name__):
        text = (CASES / case).read_text()
        with contextlib.suppress(AssertionError):
            if rewritten(text) == text:
                pytest.fail(f"{case} does not notice that {mutant.__doc__}")
        return
    if noticing_seed(mutant, seeds, run) is None:
        pytest.fail(f"{seeds} seeds do not notice that {mutant.__doc__}")


def noticing_seed(mutant: Patch, seeds: int, run: Callable[[int], object]) -> int | None:
    """The first seed by which a mutant that is in force is noticed; None: it is not.

    The seed that is recorded for it is tried first, then those for others, whose worlds are short and full of events.
    """
    order: list[int] = [NOTICED_BY.get(mutant.__name__, 0), *sorted(NOTICED_BY.values()), *range(seeds)]
    for seed in dict.fromkeys(order):
        try:
            run(seed)
        except (AssertionError, LookupError, RuntimeError):  # the last: from what the core's generators raise
            return seed
    return None


def stale() -> Iterator[tuple[str, int | None]]:
    """The mutants that are not noticed by the first seed that is tried, with one by which they are."""
    from tests.sim.journal_mutants import JOURNAL_MUTANTS
    from tests.sim.loop_mutants import LOOP_MUTANTS
    from tests.sim.mutants import MUTANTS
    from tests.sim.replica_mutants import ONE_REPLICA_MUTANTS, REPLICA_MUTANTS
    from tests.sim.restart_mutants import RESTART_MUTANTS

    kinds: tuple[tuple[Sequence[Patch], int, Callable[[int], object]], ...] = (
        ((*MUTANTS, *JOURNAL_MUTANTS, *LOOP_MUTANTS), MUTANT_SEEDS, lambda seed: nemesis(seed).run()),
        (REPLICA_MUTANTS, MUTANT_SEEDS, lambda seed: nemesis(seed, (2, 2, 3)).run()),
        (ONE_REPLICA_MUTANTS, MUTANT_SEEDS, lambda seed: nemesis(seed, all_share=1.0).run()),
        (RESTART_MUTANTS, RESTART_SEEDS, lambda seed: RestartNemesis(seed).run()),
    )
    for mutants, seeds, run in kinds:
        for mutant in mutants:
            if mutant.__name__ in NOTICED_IN_CASE:
                continue
            with pytest.MonkeyPatch.context() as patch:
                mutant(patch)
                seed = noticing_seed(mutant, seeds, run)
            if seed != NOTICED_BY.get(mutant.__name__, 0):
                yield mutant.__name__, seed


if __name__ == "__main__":
    for name, found in stale():
        print(f'"{name}": {found},', flush=True)
