"""The journal of a run: the events that its driver was given, and what it ordered then.

Each event is written before anything is done about it. The events are all that the core was given, and it is
deterministic: a driver that takes them in again stands where the last one stood. One of another release may decide
otherwise, so orders are written, too, before they are carried out: see orders.py. Where all this lies is the business
of `sqlite_journal.py`, a file in the folder of the run's records, and `etcd_journal.py`.

A journal is data (codec.py) with a format number (formats.py), so that a driver of the next release can take over a run
of this one. It holds keys and is trusted less than code: whatever its bytes are, they make data or a JournalError.

Beside an event the journal keeps the progress with which a stretch of training has ended, so the next driver knows how
the time before it was spent.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from edriver.common.release import PROTOCOL, VERSION
from edriver.driver.journal.codec import CodecError, Json
from edriver.driver.journal.entries import JournalEntry
from edriver.driver.journal.formats import FORMAT, OLDEST_FORMAT, JournalPart, upgraded
from edriver.driver.journal.orders import OtherOrderError

EXIT_REPLACED: Final = 75
"""The exit code of a driver that leaves its run to another: EX_TEMPFAIL of sysexits.h."""

SNAPSHOT_BYTES: Final = 512 * 1024
"""Events of this size are replaced by a snapshot: some 2,000, which take a fraction of a second to replay."""

SNAPSHOT_SHARE: Final = 10
"""The next one follows when the events since the last are so many times its size: a large one takes time to write."""

ENTRY_BYTES: Final = 40
"""What an entry takes beside its event."""

_LATEST: Final = 2.0**40
"""Seconds: more than any clock shows."""

AgentLink: TypeAlias = tuple[int, int, int]
"""An agent, the number of its latest message, and the number of the driver's last message that it had then."""


class JournalError(Exception):
    """The journal cannot be used. The message is a sentence: which one, why, and what to do."""


class JournalLostError(JournalError):
    """Another driver may have the journal by now, so this one must decide nothing more."""


@dataclass(frozen=True, slots=True, repr=False)
class Head:
    """The data, beside the events, that a driver needs to take a run over.

    Attributes:
        run_id: the run.
        arguments: its command line.
        directory: the working directory of the command line.
        environment: the environment of the command line, which workers inherit.
        key: the key of its draws.
        folder: the run's private folder, with the socket at which the agents of this machine find their driver.
        incarnation: the number of earlier drivers, plus 1.
        began: the core's clock, and the time in seconds since the epoch, when the run began.
        port: the port at which agents of other hosts find the driver; 0: no port.
        credentials: the credentials that identify the driver to them: see RunCredentials; may be empty.
        protocol: the PROTOCOL of the run's agents and workers.
    """

    run_id: str
    arguments: tuple[str, ...]
    directory: str
    environment: Mapping[str, str]
    key: bytes
    folder: str
    incarnation: int = 1
    began: tuple[float, float] = (0.0, 0.0)
    port: int = 0
    credentials: str = ""
    protocol: int = PROTOCOL

    def to_json(self) -> str:
        """One object of JSON."""
        return json.dumps({name: getattr(self, name) for name in self.__slots__} | {"key": self.key.hex()})

    @classmethod
    def from_json(cls, text: str | bytes, written_in: int = FORMAT) -> Head:
        """Read what `to_json` has written, of this release or another: see codec.py on fields that come and go.

        Args:
            text: what was written,
            written_in: in this format.

        Raises:
            ValueError: it is something else.
        """
        found = upgraded(JournalPart.HEAD, json.loads(text), written_in)
        needed = {field.name for field in dataclasses.fields(cls) if field.default is dataclasses.MISSING}
        if not isinstance(found, dict) or not needed <= found.keys():
            raise ValueError("it does not have the fields of a head")
        known: dict[str, Any] = {name: found[name] for name in cls.__slots__ if name in found}
        for name, value in known.items():
            if not _FIELD_CHECKS[name](value):
                raise ValueError(f"{name} is {value!a:.100}")
        known |= {name: tuple(known[name]) for name in ("arguments", "began") if name in known}
        return cls(**known | {"key": bytes.fromhex(known["key"])})


def _is_text(found: object) -> bool:
    """Whether it can be an argument, a path, or the value of a variable."""
    if not isinstance(found, str) or "\0" in found:
        return False
    try:
        os.fsencode(found)
    except UnicodeEncodeError:
        return False
    return True


def _is_number(found: object, least: float, most: float) -> bool:
    return isinstance(found, int | float) and not isinstance(found, bool) and least <= found <= most


def _is_whole(found: object, least: int, most: int) -> bool:
    return isinstance(found, int) and _is_number(found, least, most)


_FIELD_CHECKS: Final[Mapping[str, Callable[[Any], bool]]] = {
    "run_id": lambda found: _is_text(found) and bool(found),
    "arguments": lambda found: isinstance(found, list) and all(map(_is_text, found)),
    "directory": _is_text,
    "environment": lambda found: (
        isinstance(found, dict)
        and all(_is_text(name) and name and "=" not in name and _is_text(value) for name, value in found.items())
    ),
    "key": _is_text,
    "folder": _is_text,
    "incarnation": lambda found: _is_whole(found, 1, 2**31),
    "began": lambda found: isinstance(found, list) and [_is_number(each, 0.0, _LATEST) for each in found] == [True] * 2,
    "port": lambda found: _is_whole(found, 0, 65535),
    "credentials": _is_text,
    "protocol": lambda found: _is_whole(found, 1, 2**31),
}
"""Says for each field of a head whether a value is valid."""


class JournalRecord(NamedTuple):
    """A record that is written at once.

    Attributes:
        entry: an event, with its times; None: the message was not an event for the core.
        link: identifies the agent's message that was taken in; None: the event comes from the driver itself.
    """

    entry: JournalEntry | None
    link: AgentLink | None = None


class Journal(ABC):
    """The journal of a run, held by this process alone.

    Attributes:
        name: its name in messages.
        records_at_once: the maximum number of records that one call of `append` should write.
        remote: whether writing waits for other machines, so that it belongs in a separate thread.
        format: the format of the contents: see formats.py.
        written_by: the release that wrote the contents.
    """

    name: str
    records_at_once: int = 60
    remote: bool = False

    def __init__(self) -> None:
        self.format = FORMAT
        self.written_by = VERSION
        self._bytes_since_snapshot = 0
        self._snapshot_size = 0

    @property
    @abstractmethod
    def head(self) -> Head:
        """See Head.

        Raises:
            JournalError: the journal has no head.
        """

    @abstractmethod
    def update(self, head: Head) -> None:
        """Put another head in place of the one that is there.

        Raises:
            JournalError: it cannot be written.
        """

    @abstractmethod
    def append(self, records: Sequence[JournalRecord]) -> None:
        """Add events, and note which messages of agents have been taken in; all of it or nothing.

        Raises:
            JournalError: it cannot be written.
        """

    @abstractmethod
    def append_orders(self, orders: Sequence[str]) -> None:
        """Add what was ordered, before it is carried out: see orders.py.

        Raises:
            JournalError: it cannot be written.
        """

    @property
    def wants_snapshot(self) -> bool:
        """Whether there are so many events since the last snapshot that another one should take their place."""
        return self._bytes_since_snapshot >= max(SNAPSHOT_BYTES, SNAPSHOT_SHARE * self._snapshot_size)

    @abstractmethod
    def write_snapshot(self, clock: float, wall_clock: float, state: bytes) -> None:
        """Put the state after all events in place of these, and of the orders. From then on all is of this format.

        Args:
            clock: the core's time,
            wall_clock: and that in seconds since the epoch.
            state: JSON: see state.py.

        Raises:
            JournalError: it cannot be written.
        """

    @abstractmethod
    def snapshot(self) -> tuple[float, float, Json] | None:
        """What `write_snapshot` was given last, the state as JSON; None: there was no snapshot, and the entries are
        complete.
        """

    @abstractmethod
    def entries(self) -> Iterator[JournalEntry]:
        """All events since the snapshot, oldest first.

        Raises:
            JournalError: one cannot be read.
        """

    @abstractmethod
    def orders(self) -> Iterator[str]:
        """All orders since the snapshot, oldest first.

        Raises:
            JournalError: one cannot be read.
        """

    @abstractmethod
    def links(self) -> Iterator[AgentLink]:
        """Of each agent, its last message: see `append`."""

    def on_lost(self, leave: Callable[[JournalLostError], None]) -> None:  # noqa: B027  most are never lost
        """Have this called, from any thread, when another driver may have the journal."""

    @abstractmethod
    def discard(self) -> None:
        """Remove it: from what it has, no driver may continue any more."""

    @abstractmethod
    def close(self) -> None:
        """Let it go."""

    def damaged(self, what: str) -> JournalError:
        """The error that says so, of something in it."""
        return JournalError(
            f"the journal {self.name} is damaged ({what}), so the run cannot be resumed: its hosts end their workers "
            "after --driver-timeout. Remove the journal, and the same command line starts a new run"
        )

    @contextlib.contextmanager
    def _reading(self, what: str) -> Iterator[None]:
        """Read a part of the journal.

        Raises:
            JournalError: the part does not have the form that this driver writes.
        """
        try:
            yield
        except JournalError:
            raise
        except Exception as error:  # noqa: BLE001  damaged bytes raise nearly everything
            raise self.damaged(f"{what}: {str(error) or type(error).__name__}") from None

    def unwritable(self, error: CodecError) -> JournalError:
        """The error that says so, of what this driver knows, and what it would write."""
        return JournalError(
            f"edriver {VERSION} cannot write into the journal {self.name} what it knows of the run: {error}. Please "
            "report that"
        )

    def not_taken_over(self, error: JournalError) -> JournalError:
        """The error that says so, of a driver that cannot go on with this journal; it is as it was."""
        way_out = (
            "Remove the journal, and the same command line starts anew, from the last checkpoint"
            if self.written_by == VERSION
            else f"Resume it with edriver {self.written_by}, which has written the journal (pip install "
            f"edriver=={self.written_by})"
        )
        return JournalError(f"the run is not taken over, and nothing has been changed: {error}. {way_out}")

    def check_protocol(self) -> None:
        """Check that this driver can work with the run's agents; they would end their workers if they were refused.

        Raises:
            JournalError: it cannot, or the journal has no head.
        """
        if (protocol := self.head.protocol) != PROTOCOL:
            text = f"its agents and workers have protocol {protocol}, and edriver {VERSION} has {PROTOCOL}"
            raise self.not_taken_over(JournalError(text))

    def decided_otherwise(self, error: OtherOrderError) -> JournalError:
        """The error that says so, of this release's core on the events in it."""
        now, then = (kind.partition(" ")[0] or "nothing" for kind in (error.now, error.then))
        return JournalError(
            f"the run of the journal {self.name} cannot be taken over: edriver {VERSION} would have ordered {now} "
            f"where edriver {self.written_by} ordered {then}, and the agents have already followed that order. Resume "
            f"the run with edriver {self.written_by} (pip install edriver=={self.written_by}), which saves the run's "
            f"state; then kill that driver, and {VERSION} can take over"
        )

    def _check_format(self, format_number: int, written_by: str) -> None:
        """See what can be read.

        Raises:
            JournalError: nothing can: the format is too new, or too old.
        """
        self.format, self.written_by = format_number, written_by
        if OLDEST_FORMAT <= format_number <= FORMAT:
            return
        newer = format_number > FORMAT
        way_out = f"with that one, or a later one (pip install 'edriver>={written_by}')"
        raise JournalError(
            f"the journal {self.name} was written by edriver {written_by} in format {format_number}, and this is "
            f"{VERSION}, which reads {OLDEST_FORMAT} to {FORMAT}: resume the run "
            + (way_out if newer else f"with that one (pip install edriver=={written_by})")
        )

    def _state(self, data: bytes) -> Json:
        """The state in a snapshot."""
        return upgraded(JournalPart.SNAPSHOT, json.loads(data), self.format)

    def _note_written(self, sizes: Iterable[int]) -> None:
        self._bytes_since_snapshot += sum(size + ENTRY_BYTES for size in sizes)
