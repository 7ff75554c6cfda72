"""From discovery's answers to the set of hosts in force: additions at once, removals when they persist.

A source is often a script over an API that fails now and then, or over a file that is being written. A host that is
missing from one answer is often a hiccup, and taking it away costs the run a round; so the slots in force of a host are
the most that the last few answers gave it. A poll that failed says nothing about hosts: it neither counts as an answer
without them nor breaks a row of such answers.

The answer that decides about a removal is asked for soon, so that a host that is gone is left soon. The price is a
source that is wrong for longer than that moment. It costs one round in ten minutes: a source that names a host again
soon after an answer without it is known to be wrong at times, and has an interval to correct itself for as long.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from edriver.model.hosts import Host, HostSet
from edriver.text.phrases import some_of

REMOVAL_POLLS: Final = 2
"""Answers in a row without a host after which it leaves."""

RECALL_ANSWERS: Final = 30
"""Answers within which a host that was missing must be named again for its absence to count as an error of the source.
Half a minute: a machine that was taken away is not back sooner."""

CAUTIOUS_ANSWERS: Final = 600
"""Answers after such an error for which the source is not asked sooner than usual: ten minutes."""

_MAX_SHOWN_HOSTS = 5


@dataclass(frozen=True, slots=True)
class PollResult:
    """What one poll comes to.

    Attributes:
        hosts: the set in force, in order of age.
        changed: whether it differs from the set before this poll.
        note: the reason, in one line; the same as long as there is nothing new to report, so that it can
            be logged once per change. Empty when all is quiet.
        failures: how many polls in a row gave no believed answer, this one included.
        error: why this one gave none; empty if it did.
        ask_soon: whether the next answer may remove a host, and is to be asked for soon.
    """

    hosts: HostSet
    changed: bool
    note: str
    failures: int
    error: str = ""
    ask_soon: bool = False


@dataclass(slots=True)
class Polls:
    """How a source has answered so far, for observers.

    Attributes:
        answered: how many polls gave an answer that was believed,
        failed: and how many did not.
        seconds: how long the last one took.
        last_answer: when the last usable answer arrived, in seconds since the epoch; None before the first.
    """

    answered: int = 0
    failed: int = 0
    seconds: float = 0.0
    last_answer: float | None = None

    def add(self, began: float, ended: float, believed: bool) -> None:
        """Count one; times are in seconds since the epoch."""
        self.seconds = max(0.0, ended - began)  # the clock may be set
        if believed:
            self.answered += 1
            self.last_answer = ended
        else:
            self.failed += 1


class PollFilter:
    """Turns the sequence of polls into the set in force. Pure: time is the sequence of calls."""

    def __init__(self, removal_polls: int = REMOVAL_POLLS, empty_polls: int = 3) -> None:
        """A filter that has seen no poll yet: no hosts are in force.

        Args:
            removal_polls: a host leaves, or shrinks, after this many consecutive answers without it, or with
                fewer slots.
            empty_polls: an answer without any host counts as a failed poll until this many have arrived in a row;
                then all of them count as answers. So the last host leaves after the larger of the two numbers.

        Raises:
            ValueError: a number is less than 1.
        """
        if removal_polls < 1 or empty_polls < 1:
            raise ValueError(f"removal_polls={removal_polls} and empty_polls={empty_polls} must both be at least 1")
        self._empty_polls = empty_polls
        self._hosts = HostSet()
        self._answers: deque[HostSet] = deque(maxlen=removal_polls)
        self._empty = 0
        self._failures = 0
        self._count = 0  # of answers
        self._missed: dict[str, tuple[int, int]] = {}  # hosts: the answer that gave less, and the slots before it
        self._cautious_until = 0

    @property
    def hosts(self) -> HostSet:
        """The set in force."""
        return self._hosts

    def accept(self, answer: HostSet) -> PollResult:
        """A poll that answered."""
        if answer:
            self._empty = 0
            if self._is_known(answer):
                self._count += 1
                return PollResult(self._hosts, changed=False, note="", failures=0)
            return self._believe([answer])
        self._empty += 1
        if not self._hosts:
            self._failures = 0
            return PollResult(self._hosts, changed=False, note="discovery finds no hosts", failures=0)
        if self._empty < self._empty_polls:
            error = f"an answer without any hosts is believed only when {self._empty_polls} in a row are empty"
            return self.fail(error)
        return self._believe([answer] * (self._empty if self._empty == self._empty_polls else 1))

    def fail(self, error: str) -> PollResult:
        """A poll that gave no answer, and why: the set in force stays."""
        self._failures += 1
        kept = f"keeping {self._hosts}" if self._hosts else "no hosts are known yet"
        note = f"poll failed, {kept}: {error}"
        return PollResult(self._hosts, changed=False, note=note, failures=self._failures, error=error)

    def _is_known(self, answer: HostSet) -> bool:
        """Whether it changes nothing: every answer that still counts is this same object."""
        disturbed = self._missed or self._failures or not self._answers
        return not disturbed and all(answer is earlier for earlier in self._answers)

    def _believe(self, answers: list[HostSet]) -> PollResult:
        self._answers.extend(answers)
        before, self._hosts = self._hosts, self._most_of_answers()
        self._look_for_errors(before)
        failures, self._failures = self._failures, 0
        delta = before.delta(self._hosts)
        notes = []
        if failures and not delta.result and self._answers[-1]:
            notes.append(f"discovery answers again: {self._hosts}")
        if delta.result:
            notes.append(f"{some_of(delta.changes, _MAX_SHOWN_HOSTS)}; now {self._hosts}")
        if doubted := self._doubted():
            notes.append(doubted)
        ask_soon = bool(doubted) and bool(self._answers[-1]) and self._count >= self._cautious_until
        note = "; ".join(notes)
        return PollResult(self._hosts, changed=bool(delta.result), note=note, failures=0, ask_soon=ask_soon)

    def _look_for_errors(self, before: HostSet) -> None:
        """Remember which hosts the last answer gives less than before; those that it names again were there all along.

        Args:
            before: the set in force before that answer.
        """
        answer = self._answers[-1]
        self._count += 1
        for name, (at, slots) in [*self._missed.items()]:
            if answer.slots(name) >= slots:
                del self._missed[name]
                self._cautious_until = self._count + CAUTIOUS_ANSWERS
            elif self._count - at >= RECALL_ANSWERS:
                del self._missed[name]
        for host in before:
            if answer.slots(host.name) < host.slots:
                self._missed.setdefault(host.name, (self._count, host.slots))

    def _most_of_answers(self) -> HostSet:
        """Each host with the most slots that one of the last answers gave it, in order of age."""
        most: dict[str, Host] = {}
        for answer in self._answers:
            for host in answer:
                if host.name not in most or host.slots > most[host.name].slots:
                    most[host.name] = host
        return self._hosts.aged_by(HostSet(tuple(most.values())))

    def _doubted(self) -> str:
        """Which hosts are in force on the word of earlier answers only."""
        answer = self._answers[-1]
        doubted = [str(host) for host in self._hosts if answer.slots(host.name) < host.slots]
        if not doubted:
            return ""
        return f"keeping {some_of(doubted, _MAX_SHOWN_HOSTS)} until {self._answers.maxlen} answers in a row give less"
