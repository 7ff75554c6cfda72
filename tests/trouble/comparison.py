"""Compares what a run tells of its time in several places with one another, and with what its workers wrote down."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from benchmarks.history import History
from edriver.model.stall_limits import MIN_STALL_SECONDS
from edriver.text.progress_text import length_text
from tests.trouble.reported_times import RoundTimes, round_times
from tests.trouble.surfaces import Reported

SHARE, SECONDS = 0.01, 0.05
"""How far a number may be from the truth: the larger one counts."""

ROUNDING = 5e-6
"""Messages have microseconds, and a sum of some of them is a few of these off."""

COUNTED_LATE = 9.0
"""Seconds for which metrics wait with a step, until all members have reported it: 5, and as long as reports take."""

LATE = 4.5
"""Seconds that a worker's report is old at most: it is asked every 1.25 s, and its agent's next message takes it."""

WINDOW = (9.0, 15.0)
"""Seconds over which a rate is taken: 10, and as many as lie between two reports more."""


@dataclass(slots=True)
class Comparison:
    """What was compared.

    Attributes:
        worst: by what was compared, the largest difference from the truth: absolute, as a share, and both numbers.
        exact: by what was compared, how many numbers were the same in two places.
        faults: what was wrong, in sentences.
    """

    worst: dict[str, tuple[float, float, str]] = field(default_factory=dict)
    exact: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def add(self, other: Comparison) -> None:
        """Add those of another run."""
        for what, (difference, share, account) in other.worst.items():
            self._note(what, difference, share, account)
        for what, count in other.exact.items():
            self.exact[what] = self.exact.get(what, 0) + count
        self.faults += other.faults

    def table_of_worst(self) -> Iterator[str]:
        """The worst differences, a line each."""
        yield f"{'compared with the workers own records':<44} {'worst':>12} {'of it':>8}  reported, true"
        for what, (difference, share, account) in sorted(self.worst.items()):
            yield f"{what:<44} {difference:>12.6f} {100 * share:>6.2f} %  {account}"
        yield f"{'the same in two places':<44} {'numbers':>12}"
        for what, count in sorted(self.exact.items()):
            yield f"{what:<44} {count:>12}"

    # ---- with the truth --------------------------------------------------------------------------------------

    def with_truth(
        self, where: str, reported: Reported, history: History, began: float, ended: float | None = None
    ) -> None:
        """Seconds, goodput, interruptions and steps against what the workers wrote down until then.

        Args:
            where: names the place and the time.
            reported: what is reported.
            history: what was written down up to the time that is accounted for.
            began: when the run began, in seconds since the epoch.
            ended: when it ended; None: it goes on.
        """
        if reported.seconds is None:
            self.faults.append(f"{where}: nothing is reported of the time")
            return
        to_monotonic = time.monotonic() - time.time()
        rounds, until = list(round_times(history)), reported.until(began) + to_monotonic
        unsure = sum(part.unsure for part in rounds)
        training = sum(part.training for part in rounds)
        repeating = sum(part.repeating for part in rounds)
        booting = rounds[0].start - began - to_monotonic
        stalled = sum(sum(part.stalls) for part in rounds)
        between = sum(two.start - one.last for one, two in pairwise(rounds))
        rest = until - rounds[-1].last
        seconds = reported.seconds
        self._close(f"{where}: training", seconds["training"], training, unsure)
        self._close(f"{where}: repeating", seconds["repeating"], repeating, unsure)
        self._close(f"{where}: booting", seconds["booting"], booting)
        others = sum(seconds[kind] for kind in ("recovering", "waiting", "stalled", "ending"))
        self._close(f"{where}: all else", others, stalled + between + rest, unsure)
        if reported.goodput is None:
            self.faults.append(f"{where}: no goodput is reported")
        else:
            true = training / (until - began - to_monotonic)
            self._close(f"{where}: goodput", reported.goodput, true, unsure / (until - began - to_monotonic), least=0.0)
        if reported.interruptions is not None:
            last = None if ended is None else ended + to_monotonic
            self._interruptions(where, reported, rounds, began + to_monotonic, last)
        self._steps(where, reported, history)

    def _interruptions(
        self, where: str, reported: Reported, rounds: Sequence[RoundTimes], began: float, ended: float | None
    ) -> None:
        """Each of them, and whether there is one too many or too few."""
        to_monotonic = time.monotonic() - time.time()
        true = [("boot", began, rounds[0].start - began, 0.0)]
        for one, two in pairwise([*rounds, None]):
            assert one is not None
            true += [("stall", start, length, one.unsure) for start, length in one.stalled_at]
            if two is not None:
                true.append(("", one.last, two.start - one.last, one.spread))
        assert reported.interruptions is not None
        said = list(reported.interruptions)
        if ended is not None and len(said) == len(true) + 1 and said[-1][0] != "stall":
            true.append(("", rounds[-1].last, ended - rounds[-1].last, rounds[-1].spread))  # the run ended of it
        if len(said) != len(true):
            if not any(part.unsure for part in rounds):
                self.faults.append(f"{where}: {len(said)} interruptions are reported, of {len(true)}: {said}, {true}")
            return
        for (kind, start, seconds), (wanted, at, length, unsure) in zip(said, true, strict=True):
            if (wanted == "stall") != (kind == "stall") or (wanted == "boot") != (kind == "boot"):
                self.faults.append(f"{where}: a {kind} at {start}, and not a {wanted or 'break between rounds'}")
            self._close(f"{where}: length of {kind}", seconds, length, unsure)
            if start is not None and kind != "stall":
                self._close(f"{where}: start of {kind}", start + to_monotonic - at, 0.0, unsure)

    def _steps(self, where: str, reported: Reported, history: History) -> None:
        done = [current for current in history.rounds if current.done]
        most = sum(max(0, one.last_step - two.first_step) for one, two in pairwise(done))
        most += reported.end == "failed"  # before an attempt to go on that no worker has lived to write down
        least, lost = history.steps_lost(), reported.numbers.get("steps lost")
        if lost is not None and not least <= lost <= most:
            self.faults.append(f"{where}: {lost} steps lost, and it were {least} to {most}")
        reached = done[-1].last_step
        if (steps := reported.numbers.get("steps")) is not None and not 0 <= reached - steps <= 1:
            self.faults.append(f"{where}: step {steps}, and it was {reached}")
        if (samples := reported.numbers.get("samples")) is not None:
            made = _samples_made(history)
            self._close(f"{where}: samples made", samples, made, 2 * made / max(1, reached))

    def rate(self, where: str, rate: float | None, history: History, now: float) -> None:
        """Samples a second against all that they may have been over the window, whenever the last report came."""
        if rate is None:
            self.faults.append(f"{where}: no samples a second are reported")
            return
        ends = now + time.monotonic() - time.time()
        counted = _samples_over_time(history)
        begun = [(at, count) for at, count in counted if ends - LATE - WINDOW[1] <= at]
        rates = []
        for place, (first, low) in enumerate(begun):
            for (last, high), (following, _) in zip(begun[place + 1 :], [*begun[place + 2 :], (ends, 0)], strict=False):
                if WINDOW[0] <= last - first <= WINDOW[1] and last >= ends - LATE:
                    rates.append((high - low) / (last - first))
                    if following - last > MIN_STALL_SECONDS:  # it was seen to stand still meanwhile
                        rates.append((high - low) / (following - first))
        if not rates:
            self.faults.append(f"{where}: no samples were made that a rate could be of")
            return
        nearest = min(max(rate, min(rates)), max(rates))
        self._close(f"{where}: samples/s", rate, nearest, least=0.0)

    # ---- with one another ------------------------------------------------------------------------------------

    def between(self, reported: Reported, before: Reported, after: Reported) -> None:
        """Of a run that goes on: what grows lies between two answers, what does not is the same in all three."""
        for kind, seconds in (reported.seconds or {}).items():
            assert before.seconds is not None
            assert after.seconds is not None
            low, high = sorted((before.seconds[kind], after.seconds[kind]))
            if reported.where == "metrics" and kind in ("training", "repeating"):
                low = max(0.0, low - COUNTED_LATE)
            self._count(f"live: seconds of {reported.where} between two of status")
            if not low - ROUNDING <= seconds <= high + ROUNDING:
                self.faults.append(f"live: {kind} {seconds} in {reported.where}, and {low} to {high} in status")
        if reported.where == "metrics":
            if reported.seconds is not None and (training := reported.seconds["training"]):
                self._same(
                    "live: goodput of its own counters",
                    "in metrics",
                    reported.goodput,
                    training / sum(reported.seconds.values()),
                )
        elif None not in (reported.goodput, before.goodput, after.goodput):
            low, high = sorted((before.goodput or 0.0, after.goodput or 0.0))
            self._count(f"live: goodput of {reported.where} between two of status")
            if not low - 1e-5 <= (reported.goodput or 0.0) <= high + 1e-5:
                self.faults.append(f"live: goodput {reported.goodput} in {reported.where}, {low} to {high} in status")
        for name in reported.numbers.keys() & before.numbers.keys():
            low, value, high = before.numbers[name], reported.numbers[name], after.numbers[name]
            self._count(f"live: {reported.where} and status")
            if not low - ROUNDING <= value <= high + ROUNDING:
                self.faults.append(f"live: {name} {value} in {reported.where}, and {low} to {high} in status")

    def ended(self, recorded: Reported, others: Iterable[Reported]) -> None:
        """Of a run that has ended: all is the same."""
        for reported in others:
            pairs: dict[str, tuple[float | None, float | None]] = {"goodput": (recorded.goodput, reported.goodput)}
            if reported.seconds is not None and recorded.seconds is not None:
                pairs |= {kind: (value, reported.seconds[kind]) for kind, value in recorded.seconds.items()}
            for name in reported.numbers.keys() & recorded.numbers.keys():
                pairs[name] = (recorded.numbers[name], reported.numbers[name])
            if reported.interruptions is not None:
                pairs |= _pairs_of_interruptions(recorded, reported)
            for name, (true, value) in pairs.items():
                self._same(f"end: {reported.where} and records", name, value, true)
            pairs = {}
            for name, value in reported.numbers.items():
                if name.startswith(("interruptions: ", "seconds of ")):
                    lengths = _lengths(recorded, name.partition(": ")[2] or name.removeprefix("seconds of "))
                    pairs[name] = (value, len(lengths) if ": " in name else sum(lengths))
            for name, (value, true) in pairs.items():
                self._same(f"end: {reported.where} and records", name, value, true)
            if reported.end is not None and reported.end != recorded.end and recorded.end is not None:
                self.faults.append(f"end: {reported.end} in {reported.where}, and {recorded.end} in the records")
        lengths = _lengths(recorded, "failure")
        own = {"recoveries": len(lengths)}
        if lengths:
            own |= {"median recovery": median(lengths), "longest recovery": max(lengths)}  # type: ignore[dict-item]
        if recorded.end in ("done", "stopped"):
            for name, wanted in own.items():
                self._same("end: records and their own interruptions", name, recorded.numbers.get(name), wanted)

    def page_texts(self, texts: Mapping[str, str], recorded: Reported, where: str = "page") -> None:
        """The tiles of the page."""
        good = "–" if recorded.goodput is None else f"{100 * recorded.goodput:.1f} %"
        self.text(where, "goodput", texts["goodput"], good)
        self.text(where, "steps lost", texts["lost"].replace(",", ""), f"{recorded.numbers['steps lost']:.0f}")
        self.text(where, "progress", texts["progress"].replace(",", ""), f"step {recorded.numbers['steps']:.0f}")
        if recorded.numbers.get("recoveries"):
            self.text(where, "recovery", texts["recovery"], length_text(recorded.numbers["median recovery"]))
            longest = length_text(recorded.numbers["longest recovery"])
            self.text(where, "longest recovery", texts["recovery-note"].rpartition("longest ")[2], longest)

    def summary(self, printed: str, recorded: Reported) -> None:
        """What `edriver report` prints."""
        facts = dict(line.split("  ", 1) for line in printed.splitlines() if "  " in line)
        good = "no step was made" if recorded.goodput is None else f"{100 * recorded.goodput:.1f} %"
        self.text("report's summary", "goodput", facts["goodput"].strip()[: len(good)], good)
        lost = f"{recorded.numbers['steps lost']:.0f}"
        self.text("report's summary", "steps lost", facts["lost"].strip().split()[0], lost)
        reached = f"step {recorded.numbers['steps']:.0f}"
        self.text("report's summary", "step", facts["reached"].strip().split(";")[0].split(",")[0], reached)

    def table(self, rows: Sequence[Sequence[str]], recorded: Reported) -> None:
        """The report's table of interruptions."""
        assert recorded.interruptions is not None
        said = [(row[1], row[2]) for row in rows]
        true = [(kind, length_text(seconds)) for kind, _, seconds in sorted(recorded.interruptions, key=_start)]
        self.text("report's table", "interruptions", str(said), str(true))

    def last_line(self, output: str, recorded: Reported) -> None:
        """The run's last line in the terminal."""
        found = re.search(r"edriver: done: .* goodput (.*)$", output, re.MULTILINE)
        good = f"{100 * (recorded.goodput or 0):.1f} %"
        self.text("last line", "goodput", found[1] if found else output[-300:], good)

    def text(self, where: str, what: str, shown: str, wanted: str) -> None:
        """A text that is shown is the one that should be."""
        self._count(f"text: {where}")
        if shown != wanted:
            self.faults.append(f"{where}: {what} is {shown!r}, and should be {wanted!r}")

    # ---- how -------------------------------------------------------------------------------------------------

    def _close(self, what: str, reported: float, true: float, unsure: float = 0.0, least: float = SECONDS) -> None:
        difference = abs(reported - true)
        share = difference / abs(true) if true else 0.0
        account = f"{reported:.6f}, {true:.6f}" + (f", unsure {unsure:.3f}" if unsure else "")
        self._note(what, difference, share, account)
        if difference > max(SHARE * abs(true), least) + unsure:
            self.faults.append(f"{what} is reported as {reported:.6f}, and was {true:.6f}")

    def _note(self, what: str, difference: float, share: float, account: str) -> None:
        if what not in self.worst or difference > self.worst[what][0]:
            self.worst[what] = (difference, share, account)

    def _count(self, what: str) -> None:
        self.exact[what] = self.exact.get(what, 0) + 1

    def _same(self, what: str, name: str, value: float | None, true: float | None) -> None:
        self._count(what)
        if value is None or true is None:
            if value is not true:
                self.faults.append(f"{what}: {name} {value} and {true}")
        elif abs(value - true) > ROUNDING:
            self.faults.append(f"{what}: {name} {value} and {true}")


def _start(each: tuple[str, float | None, float]) -> float:
    return each[1] or 0.0


def _lengths(reported: Reported, kind: str) -> list[float]:
    return [seconds for of, _, seconds in reported.interruptions or [] if of == kind]


def _pairs_of_interruptions(recorded: Reported, reported: Reported) -> dict[str, tuple[float | None, float | None]]:
    one, two = recorded.interruptions or [], reported.interruptions or []
    pairs: dict[str, tuple[float | None, float | None]] = {"count of interruptions": (len(one), len(two))}
    for number, ((_, start, length), (_, start_there, length_there)) in enumerate(zip(one, two, strict=False)):
        pairs[f"start of interruption {number}"] = (start, start_there)
        pairs[f"length of interruption {number}"] = (length, length_there)
    return pairs


def _samples_over_time(history: History) -> list[tuple[float, int]]:
    """When each step was first finished by a member, and all samples that were trained on by then."""
    found, count = [], 0
    for current in history.rounds:
        for step, ranks in sorted(current.done.items()):
            count += sum(len(batch.samples) for batch in current.batches[step].values())
            found.append((min(record.time for record in ranks.values()), count))
    return found


def _samples_made(history: History) -> int:
    over_time = _samples_over_time(history)
    return over_time[-1][1] if over_time else 0
