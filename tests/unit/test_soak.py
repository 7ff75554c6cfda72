"""What `make soak` draws and concludes: a verdict that cannot fail would prove nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from benchmarks.endurance import Outcome, Recovery, complaints
from benchmarks.lives import WARM_UP, Life, Sample, change_of
from benchmarks.vitals import Vitals, vitals_of, vitals_of_all
from benchmarks.waves import REIGN, waves_of

MB = 1_000_000
GONE = 2**22 + 1
"""No process: above what the kernel gives."""


def life(
    memory_per_kill: int = 0, descriptors_per_kill: float = 0, threads_at_end: int = 9, kills: int = 200, first: int = 0
) -> Life:
    samples = []
    for kill in range(first, first + kills + 1):
        warming = 50 * MB * min(kill - first, WARM_UP) // WARM_UP
        noise = 3000 * (-1) ** kill
        held = Vitals(
            memory=200 * MB + warming + noise + memory_per_kill * kill,
            descriptors=20 + kill % 3 + int(descriptors_per_kill * kill),
            threads=threads_at_end if kill > first + kills - 10 else 9,
        )
        samples.append(Sample(kill, held))
    return Life("worker", 7, samples=samples)


def recovery(kill: int, seconds: float) -> Recovery:
    return Recovery(kill, round=2 * kill, entered=0.04, seconds=seconds, rank_zero=False, victims=1)


def outcome(*lives: Life, slowest: float = 0.29, steps_lost: int = 0) -> Outcome:
    recoveries = [*(recovery(kill, 0.1) for kill in range(1, 10)), recovery(10, slowest)]
    return Outcome(lives=list(lives), recoveries=recoveries, steps_lost=steps_lost)


def test_what_is_flat_after_its_warm_up_passes() -> None:
    assert list(complaints(outcome(life()))) == []


@pytest.mark.parametrize(
    ("found", "complaint"),
    [
        pytest.param(outcome(life(memory_per_kill=15_000)), r"worker 7: memory \+1\.50 MB per 100 kills", id="memory"),
        pytest.param(
            outcome(life(descriptors_per_kill=0.01)), "descriptors 20 to 21, threads 9 to 9", id="descriptors"
        ),
        pytest.param(outcome(life(threads_at_end=10)), "descriptors 20 to 20, threads 9 to 10", id="threads"),
        pytest.param(outcome(life(), slowest=0.31), r"kill 10: 310 ms until round 20 .* 3 times .* 100 ms", id="slow"),
        pytest.param(outcome(life(), steps_lost=2), "2 steps were lost", id="steps"),
        pytest.param(outcome(life(kills=WARM_UP + 5)), "too few kills to judge anything", id="short"),
        pytest.param(Outcome(lives=[Life("agent", 1, samples=life().samples)]), "too few", id="no-worker"),
        pytest.param(Outcome(lives=[life()], wrong=["stopped"]), "stopped", id="wrong"),
    ],
)
def test_what_is_not_as_it_must_be_is_said(found: Outcome, complaint: str) -> None:
    (message,) = complaints(found)
    assert re.search(complaint, message)


def test_the_warm_up_is_counted_from_a_process_s_own_first_kill() -> None:
    late = life(first=300, memory_per_kill=100)

    assert late.span == 200 - WARM_UP
    assert change_of(late).growth == pytest.approx(10_000, rel=0.01)


def test_a_life_that_ended_early_is_not_judged() -> None:
    assert list(complaints(outcome(life(), life(kills=40, memory_per_kill=MB)))) == []


@pytest.mark.parametrize("kills", [1, 2, 7, 100, 1000])
def test_waves_have_exactly_so_many_kills_and_a_seed_decides_them(kills: int) -> None:
    waves = waves_of(3, kills)

    assert sum(len(wave.strikes) for wave in waves) == kills
    assert all(1 <= len(wave.strikes) <= 2 for wave in waves)
    assert waves == waves_of(3, kills)
    assert kills < 7 or waves != waves_of(4, kills)


def test_a_reign_begins_with_falls_of_rank_zero_and_then_spares_its_elder() -> None:
    waves = waves_of(1, 1000)

    for reign in range(1000 // REIGN):
        spares = [wave.spares_elder for wave in waves if wave.reign == reign]
        assert spares == sorted(spares)
        assert spares[0] < spares[-1]
        assert sum(len(w.strikes) for w in waves if w.reign == reign and w.spares_elder) > 300
    assert all(wave.strikes[0].rank_zero != wave.spares_elder for wave in waves)
    of_rank_zero = sum(strike.rank_zero for wave in waves for strike in wave.strikes)
    assert 200 < of_rank_zero < 300


def test_the_second_kill_comes_at_once_or_during_the_recovery() -> None:
    delays = [wave.strikes[1].delay for wave in waves_of(1, 1000) if len(wave.strikes) == 2]

    assert min(delays) == 0.0
    assert 0.2 < max(delays) < 0.31


TAKES = f"""
import os
print("before", flush=True)
input()
taken = bytearray(b"x" * {40 * MB})
read, write = os.pipe()
print("after", flush=True)
input()
"""


def test_vitals_see_a_descriptor_and_the_memory_that_was_taken() -> None:
    # In another process: this one closes at any moment what earlier tests left to the garbage collector.
    with subprocess.Popen(
        [sys.executable, "-S", "-c", TAKES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "before\n"
        before = vitals_of(process.pid)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "after\n"
        after = vitals_of(process.pid)
        process.communicate("\n")

    assert after.descriptors == before.descriptors + 2
    assert after.memory - before.memory > 40 * MB // 2
    assert before.least(after).descriptors == before.descriptors


def test_the_vitals_of_a_process_that_is_gone_are_an_error() -> None:
    with pytest.raises(OSError):
        vitals_of(GONE)
    assert list(vitals_of_all([GONE, os.getpid()])) == [os.getpid()]
