"""The poll filter: sequences of polls, and the set in force after each."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edriver.discovery.poll_filter import CAUTIOUS_ANSWERS, RECALL_ANSWERS, PollFilter, PollResult
from edriver.model.hosts import Host, HostSet

FAILED = "!"
NONE = ""


def hosts(text: str) -> HostSet:
    """`"a:2 b:4"` as a HostSet."""
    pairs = (item.split(":") for item in text.split())
    return HostSet(tuple(Host(name, int(slots)) for name, slots in pairs))


def verdicts(polls: list[str], poll_filter: PollFilter) -> list[PollResult]:
    return [poll_filter.fail("broken") if poll == FAILED else poll_filter.accept(hosts(poll)) for poll in polls]


@pytest.mark.parametrize(
    ("polls", "in_force"),
    [
        pytest.param(["a:2"], ["a:2"], id="first-answer"),
        pytest.param(["a:2", "a:2 b:2"], ["a:2", "a:2 b:2"], id="addition-at-once"),
        pytest.param(["a:2", "a:4"], ["a:2", "a:4"], id="growth-at-once"),
        pytest.param(["a:2 b:2", "a:2", "a:2"], ["a:2 b:2", "a:2 b:2", "a:2"], id="removal-when-it-persists"),
        pytest.param(["a:2 b:2", "b:2", "b:2 a:2", "b:2"], ["a:2 b:2"] * 4, id="one-miss-keeps-the-host-and-its-age"),
        pytest.param(["a:4", "a:2", "a:2"], ["a:4", "a:4", "a:2"], id="shrink-when-it-persists"),
        pytest.param(["a:4", "a:1", "a:3"], ["a:4", "a:4", "a:3"], id="shrinks-to-the-most-of-the-last"),
        pytest.param(
            ["a:4 b:1", "a:2 b:1", "b:1", "b:1"],
            ["a:4 b:1", "a:4 b:1", "a:2 b:1", "b:1"],
            id="shrinks-then-leaves",
        ),
        pytest.param(
            ["a:2 b:2", "a:2", FAILED, "a:2"],
            ["a:2 b:2", "a:2 b:2", "a:2 b:2", "a:2"],
            id="failure-does-not-break-a-row-of-misses",
        ),
        pytest.param(["a:2 b:2", "a:2", FAILED, FAILED], ["a:2 b:2"] * 4, id="failure-is-no-miss"),
        pytest.param(
            ["a:1 b:1", "b:1", "b:1", "a:1 b:1"],
            ["a:1 b:1", "a:1 b:1", "b:1", "b:1 a:1"],
            id="one-that-left-comes-back-as-the-youngest",
        ),
        pytest.param(["a:2", NONE, NONE, NONE], ["a:2", "a:2", "a:2", NONE], id="empty-believed-at-the-third"),
        pytest.param(["a:2", NONE, NONE, "a:2", NONE, NONE], ["a:2"] * 6, id="an-answer-breaks-the-empty-row"),
        pytest.param(
            ["a:2", NONE, FAILED, NONE, FAILED, NONE],
            ["a:2"] * 5 + [NONE],
            id="failure-does-not-break-the-empty-row",
        ),
        pytest.param(["a:2 b:2", "a:2", NONE, "a:2 b:2"], ["a:2 b:2"] * 4, id="unbelieved-empty-is-no-miss"),
        pytest.param([NONE, "a:2"], [NONE, "a:2"], id="empty-start"),
        pytest.param([FAILED, "a:2"], [NONE, "a:2"], id="failed-start"),
        pytest.param(["a:1 b:1", "c:1 a:1 b:1"], ["a:1 b:1", "a:1 b:1 c:1"], id="newcomers-are-younger"),
    ],
)
def test_set_in_force(polls: list[str], in_force: list[str]) -> None:
    seen = verdicts(polls, PollFilter(removal_polls=2, empty_polls=3))
    assert [verdict.hosts for verdict in seen] == [hosts(text) for text in in_force]
    before = [HostSet(), *(verdict.hosts for verdict in seen)]
    assert [verdict.changed for verdict in seen] == [a != b for a, b in pairwise(before)]


@pytest.mark.parametrize(
    ("removal_polls", "empty_polls", "kept"),
    [
        pytest.param(1, 1, 0, id="at-once"),
        pytest.param(2, 3, 2, id="default"),
        pytest.param(1, 3, 2, id="empty-is-slower"),
        pytest.param(5, 3, 4, id="removal-is-slower"),
        pytest.param(5, 1, 4, id="empty-believed-at-once-is-still-a-removal"),
    ],
)
def test_the_last_host_leaves_after_the_larger_number(removal_polls: int, empty_polls: int, kept: int) -> None:
    poll_filter = PollFilter(removal_polls, empty_polls)
    poll_filter.accept(hosts("a:2"))
    seen = verdicts([NONE] * 6, poll_filter)
    assert [len(verdict.hosts) for verdict in seen] == [1] * kept + [0] * (6 - kept)


def test_notes_say_what_is_new_and_stay_the_same_until_then() -> None:
    polls = ["a:2 b:2", "a:2 b:2", FAILED, FAILED, "b:2 a:2", "a:2", "a:2", "a:2", NONE, NONE, NONE, NONE]
    empty = "an answer without any hosts is believed only when 3 in a row are empty"
    unbelieved = f"poll failed, keeping 1 host, 2 slots: {empty}"
    seen = verdicts(polls, PollFilter())
    assert [(verdict.note, verdict.failures) for verdict in seen] == [
        ("added a:2, added b:2; now 2 hosts, 4 slots", 0),
        ("", 0),
        ("poll failed, keeping 2 hosts, 4 slots: broken", 1),
        ("poll failed, keeping 2 hosts, 4 slots: broken", 2),
        ("discovery answers again: 2 hosts, 4 slots", 0),
        ("keeping b:2 until 2 answers in a row give less", 0),
        ("removed b:2; now 1 host, 2 slots", 0),
        ("", 0),
        (unbelieved, 1),
        (unbelieved, 2),
        ("removed a:2; now 0 hosts, 0 slots", 0),
        ("discovery finds no hosts", 0),
    ]


def test_a_note_names_only_the_first_few_hosts() -> None:
    note = PollFilter().accept(hosts(" ".join(f"h{n}:1" for n in range(1000)))).note
    assert note.endswith("added h4:1 and 995 more; now 1000 hosts, 1000 slots")


def test_a_failure_without_hosts_reports_that() -> None:
    assert PollFilter().fail("broken").note == "poll failed, no hosts are known yet: broken"


@pytest.mark.parametrize("numbers", [(0, 3), (2, 0)], ids=["removal", "empty"])
def test_numbers_below_one_are_refused(numbers: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        PollFilter(*numbers)


@pytest.mark.parametrize(
    ("polls", "ask_soon"),
    [
        pytest.param(["a:2 b:2", "a:2", "a:2", "a:2"], [1], id="once-for-a-removal"),
        pytest.param(["a:4", "a:2", "a:2"], [1], id="once-for-slots"),
        pytest.param(["a:2 b:2 c:2", "a:2 b:2", "a:2", "a:2"], [1, 2], id="again-for-a-further-host"),
        pytest.param(["a:2", "a:2 b:2", "a:4 b:2"], [], id="not-for-additions"),
        pytest.param(["a:2 b:2", "a:2", FAILED, "a:2"], [1], id="not-after-a-failure"),
        pytest.param(["a:2", NONE, NONE, NONE], [], id="not-for-an-empty-answer"),
        pytest.param(["a:2 b:2", "a:2", "a:2 b:2", "a:2", "a:2"], [1], id="not-after-an-error"),
        pytest.param(["a:2 b:2", "a:2", "a:2", "a:2 b:2", "a:2"], [1], id="nor-after-one-that-has-cost-a-round"),
        pytest.param(["a:4", "a:2", "a:3", "a:3", "a:2"], [1, 4], id="a-part-of-the-slots-is-no-correction"),
    ],
)
def test_the_answer_that_decides_about_a_removal_is_wanted_soon(polls: list[str], ask_soon: list[int]) -> None:
    seen = verdicts(polls, PollFilter())
    assert [at for at, verdict in enumerate(seen) if verdict.ask_soon] == ask_soon


def test_a_host_that_comes_back_much_later_was_no_error_and_an_error_is_forgotten() -> None:
    poll_filter = PollFilter()
    gone = ["a:2 b:2", *["a:2"] * (RECALL_ANSWERS + 2)]
    assert [verdict.ask_soon for verdict in verdicts([*gone, "a:2 b:2", "a:2"], poll_filter)][-1]
    verdicts(["a:2 b:2"], poll_filter)
    assert not verdicts(["a:2"], poll_filter)[-1].ask_soon
    verdicts(["a:2 b:2"] * CAUTIOUS_ANSWERS, poll_filter)
    assert verdicts(["a:2"], poll_filter)[-1].ask_soon


SETS = [hosts(text) for text in ("a:2", "a:2 b:2", "b:2 a:2", "a:1 b:2", NONE)]
RUNS = st.lists(st.tuples(st.sampled_from([*SETS, None]), st.integers(1, 35)), min_size=3, max_size=12)


@given(RUNS, st.integers(1, 3), st.integers(1, 3))
def test_a_source_may_give_the_same_object_again(
    runs: list[tuple[HostSet | None, int]], removal_polls: int, empty_polls: int
) -> None:
    """It has the same results as an equal object: the filter only does less for it."""
    same, equal = PollFilter(removal_polls, empty_polls), PollFilter(removal_polls, empty_polls)
    for poll, times in runs:
        for _ in range(times):
            if poll is None:
                assert same.fail("broken") == equal.fail("broken")
            else:
                assert same.accept(poll) == equal.accept(HostSet(poll.hosts))
    assert same._count == equal._count
