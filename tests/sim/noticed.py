"""Whether the simulation notices a wrong variant, and at which seeds it does."""

from __future__ import annotations

import pytest

from tests.sim.faults import Nemesis
from tests.sim.mutants import Patch

MUTANT_SEEDS = 2000

NOTICED_BY = {
    "a_kill_is_a_hosts_fault_for_good": 17,
    "a_failure_ends_the_wait_for_replacements": 195,
    "a_late_offer_has_seen_every_checkpoint": 21947,
    "a_loss_is_not_reported": 10,
    "a_swallowed_interrupt_is_forgiven": 23,
    "an_interrupt_is_a_loss": 167,
    "an_interrupt_offers_the_last_commit": 13,
    "an_interrupt_saves_nothing": 13,
    "an_open_interrupt_is_forgotten": 51,
    "bugs_are_retried_for_ever": 6,
    "bugs_that_take_turns_are_retried_for_ever": 14796,
    "changes_between_runs_are_lost": 23,
    "checkpoints_are_forgotten": 5,
    "checkpoints_are_not_looked_for_again": 23,
    "clean_is_restored": 5,
    "done_ignores_aborts": 94,
    "done_is_no_report": 2327,
    "drained_workers_do_not_wait": 45,
    "drained_workers_stay_for_ever": 245,
    "draws_begin_anew": 15,
    "events_after_a_snapshot_are_left_out": 10,
    "events_are_replayed_at_the_time_of_the_replay": 15,
    "every_error_is_a_loss": 6,
    "every_error_is_the_same": 6,
    "every_sync_is_a_commit": 1318,
    "finish_when_one_is_done": 25,
    "going_back_comes_before_the_offer": 6,
    "later_calls_start_unsynced": 16,
    "live_is_offered_where_torn": 23,
    "members_do_not_wait_for_the_verdict": 23,
    "members_that_stop_are_not_waited_for": 1382,
    "newcomers_can_take_over": 321,
    "newcomers_do_not_wait": 8,
    "no_state_keeper_stays": 66,
    "nothing_is_restored": 23,
    "one_accident_is_a_bug": 7,
    "only_newcomers_receive": 10,
    "outlived_slots_are_kept": 25,
    "quarantine_is_for_good": 396,
    "quarantine_stops_the_run": 61,
    "quiet_is_for_good": 837,
    "rank_zero_by_age_alone": 10,
    "rounds_form_before_all_have_stopped": 83,
    "severed_connections_are_the_scripts_own_error": 5,
    "silence_breaks_no_round": 530,
    "sizes_that_fail_are_tried_for_ever": 39,
    "stop_at_the_highest_report": 29,
    "stop_at_the_lowest_report": 113,
    "stop_overrides_abort": 214,
    "survivors_die_of_a_new_size": 155,
    "suspects_are_never_killed": 101,
    "the_second_stall_at_a_place_ends_the_run": 122,
    "the_size_is_to_blame_for_every_error": 51,
    "ticks_are_not_written": 12,
    "torn_state_counts_as_clean": 132,
    "torn_state_is_offered": 23,
    "uneven_steps_are_tried_for_ever": 82,
    "uneven_steps_are_waited_out": 82,
    "unproven_connections_are_a_bad_link": 13,
    "versions_by_count_alone": 10,
    "without_a_driver_none_are_freed": 139,
}
"""For mutants that the first seeds do not catch: one that does. If it no longer does, the test searches for another."""


def assert_noticed(mutant: Patch, patch: pytest.MonkeyPatch) -> None:
    """Fail if the simulation stays green with this wrong variant."""
    mutant(patch)
    known = NOTICED_BY.get(mutant.__name__, 0)
    for seed in (known, *range(MUTANT_SEEDS)):
        try:
            Nemesis(seed).run()
        except AssertionError:
            return
    pytest.fail(f"{MUTANT_SEEDS} seeds do not notice that {mutant.__doc__}")
