from __future__ import annotations

from edriver.driver.leases import Leases


def leases() -> Leases:
    """Five seconds, looked at each second."""
    return Leases(seconds=5.0, interval=1.0)


def look(watched: Leases, *times: float) -> dict[float, list[int]]:
    """What expires when, looking at these times."""
    return {now: over for now in times if (over := watched.expired(now))}


def test_silence_for_a_whole_lease_expires_it_once() -> None:
    watched = leases()
    watched.renew(1, 0.0)
    assert look(watched, 0, 1, 2, 3, 4, 5, 6) == {5: [1]}


def test_a_word_renews_only_the_one_who_said_it() -> None:
    watched = leases()
    watched.renew(1, 0.0)
    watched.renew(2, 0.0)
    assert look(watched, 0, 1, 2, 3, 4) == {}
    watched.renew(1, 4.5)
    assert look(watched, 5, 6, 7, 8, 9, 10) == {5: [2], 10: [1]}


def test_a_first_lease_may_be_longer() -> None:
    watched = leases()
    watched.renew(1, 0.0, seconds=8.0)
    assert look(watched, *range(10)) == {8: [1]}


def test_one_that_is_not_waited_for_does_not_expire() -> None:
    watched = leases()
    watched.renew(1, 0.0)
    watched.drop(1)
    assert look(watched, 0, 1, 2, 3, 4, 5, 6) == {}


def test_time_in_which_the_driver_itself_stood_still_does_not_count() -> None:
    watched = leases()
    watched.renew(1, 0.0)
    assert look(watched, 0, 1, 101, 102, 103, 104, 105) == {104: [1]}  # 99 s late, so due at 104 and not at 5


def test_a_little_late_is_only_a_busy_machine() -> None:
    watched = leases()
    watched.renew(1, 0.0)
    assert look(watched, 0.0, 1.9, 3.8, 5.7) == {5.7: [1]}
