"""All runs of the server: each has a state and keys, and what changes them is written down before it is answered."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Final

from edriver.model.limits import OutOfBoundsError
from edriver.rendezvous.server.journal import ServerJournal
from edriver.rendezvous.server.key_values import KeyValues
from edriver.rendezvous.server.run_state import RunState
from edriver.v1.rendezvous_pb2 import (
    ChangeKeyRequest,
    ChangeKeyResponse,
    KeyValue,
    RendezvousRecord,
    SetKeysRequest,
    SetStateRequest,
)

MAX_RUNS: Final = 256
"""Runs at a time."""

IDLE_TIMEOUT: Final = 2 * 3600.0
"""Seconds after its last call at which a run may be removed, to make room for another."""

MAX_TOTAL_STORE_BYTES: Final = 1024 * 1024 * 1024
"""Bytes of all that is kept for all runs together: keys, values, and the changes that are remembered."""


class RunRecord:
    """One run.

    Attributes:
        state: of torch's rendezvous.
        keys: its store.
        waiting: callers that wait for a key to be set, by key.
        used_at: when it was last asked for, in seconds, monotonic.
        keys_round: the round up to which the keys of old ones have been removed.
    """

    def __init__(self, incarnation: int, now: float) -> None:
        self.state = RunState(incarnation)
        self.keys = KeyValues()
        self.waiting: defaultdict[str, set[asyncio.Future[None]]] = defaultdict(set)
        self.used_at = now
        self.keys_round = 0

    def wake(self, key: str) -> None:
        """Wake callers that wait for a key."""
        for waiting in self.waiting.pop(key, ()):
            if not waiting.done():
                waiting.set_result(None)


class Runs:
    """All runs, as they are on disk.

    Args:
        journal: where changes are written down.
        clock: seconds, monotonic.

    Raises:
        CorruptJournalError: what is on disk is damaged.
        OSError: it cannot be read, or written.
    """

    def __init__(self, journal: ServerJournal, clock: Callable[[], float]) -> None:
        self._journal = journal
        self._clock = clock
        self._runs: dict[str, RunRecord] = {}
        records = list(journal.load())
        for record in records:
            self._replay(record)
        journal.begin(self._records())

    def __iter__(self) -> Iterator[tuple[str, RunRecord]]:
        """All runs, by name."""
        return iter(sorted(self._runs.items()))

    def find(self, run_id: str) -> RunRecord | None:
        """A run that may not be there."""
        run = self._runs.get(run_id)
        if run is not None:
            run.used_at = self._clock()
        return run

    def get(self, run_id: str) -> RunRecord:
        """A run, which begins if it is not there.

        Raises:
            OutOfBoundsError: there is no room for it, or it has no name.
        """
        run = self.find(run_id)
        if run is None:
            if not run_id:
                raise OutOfBoundsError("run_id is empty")
            self._make_room()
            run = self._runs[run_id] = RunRecord(self._journal.incarnation, self._clock())
        return run

    def set_state(self, request: SetStateRequest) -> tuple[RunRecord, bool]:
        """Change a state; returns the run, and whether the change was made.

        Raises:
            OutOfBoundsError: a bound is reached.
            OSError: it cannot be written down.
        """
        run = self.get(request.run_id)
        now = self._clock()
        run.state.expire(now)
        before = run.state.token
        done, changed = run.state.set(request, now)
        if done and changed:
            request.ClearField("token")
            request.ClearField("known")
            request.whole = request.whole or not before.version
            self._write(RendezvousRecord(run_id=request.run_id, state=request))
            self._forget_old_rounds(request.run_id, run, request.change.round)
        return run, done

    def set_keys(self, request: SetKeysRequest) -> None:
        """Set keys.

        Raises:
            OutOfBoundsError: a bound is reached; none is set.
            OSError: they cannot be written down.
        """
        run = self.get(request.run_id)
        self._check_total(sum(len(pair.key) + len(pair.value) for pair in request.pairs))
        values = {pair.key: pair.value for pair in request.pairs}
        run.keys.check_room(values)
        self._write(RendezvousRecord(run_id=request.run_id, keys=request))
        run.keys.set_all(values)
        for key in values:
            run.wake(key)

    def change_key(self, request: ChangeKeyRequest) -> ChangeKeyResponse:
        """Change one key.

        Raises:
            OutOfBoundsError: a bound is reached.
            NotANumberError: something is to be added to what is not a number.
            OSError: it cannot be written down.
        """
        run = self.get(request.run_id)
        self._check_total(len(request.append) + len(request.compare_set.desired))
        answer, new = run.keys.change(request)
        if new:
            value = run.keys.get(request.key)
            if value is None:
                record = RendezvousRecord(run_id=request.run_id, removed_key=request.key)
            else:
                pairs = [KeyValue(key=request.key, value=value)]
                record = RendezvousRecord(run_id=request.run_id, keys=SetKeysRequest(pairs=pairs))
                run.wake(request.key)
            record.request_id = request.request_id
            if request.HasField("add"):
                record.response.CopyFrom(answer)
            self._write(record)
        return answer

    def _write(self, record: RendezvousRecord) -> None:
        if self._journal.long:  # before it: what it says may not be done yet, and would be left out
            self._journal.begin(self._records())
        self._journal.append(record)

    def _make_room(self) -> None:
        if len(self._runs) < MAX_RUNS:
            return
        now = self._clock()
        for run_id, run in list(self._runs.items()):
            if now - run.used_at > IDLE_TIMEOUT:
                del self._runs[run_id]
                self._write(RendezvousRecord(run_id=run_id, removed=True))
        if len(self._runs) >= MAX_RUNS:
            raise OutOfBoundsError(
                f"there may be at most {MAX_RUNS} runs, and none has been idle for {IDLE_TIMEOUT:.0f} s"
            )

    def _check_total(self, more: int) -> None:
        if sum(run.keys.footprint for run in self._runs.values()) + more > MAX_TOTAL_STORE_BYTES:
            raise OutOfBoundsError(f"the stores of all runs hold {MAX_TOTAL_STORE_BYTES} bytes at most")

    def _forget_old_rounds(self, run_id: str, run: RunRecord, number: int) -> None:
        """Remove the keys of rounds before the last, under the prefix that torch gives them: no node is in them."""
        prefix = f"torch.rendezvous.{run_id}."
        if run.keys_round == number:
            return
        for key, _ in list(run.keys.items()):
            old, slash, _ = key.removeprefix(prefix).partition("/")
            if key.startswith(prefix) and slash and old.isdecimal() and int(old) < number - 1:
                run.keys.delete(key)
                self._write(RendezvousRecord(run_id=run_id, removed_key=key))
        run.keys_round = number

    def _replay(self, record: RendezvousRecord) -> None:
        """Take in what an earlier start has written. Nodes get a whole lease from now on."""
        now = self._clock()
        kind = record.WhichOneof("kind")
        if kind == "removed":
            self._runs.pop(record.run_id, None)
            return
        run = self._runs.setdefault(record.run_id, RunRecord(self._journal.incarnation, now))
        match kind:
            case "state":
                run.state.enforce(record.state, now)
            case "keys":
                with contextlib.suppress(OutOfBoundsError):  # bounds that were larger once
                    run.keys.set_all({pair.key: pair.value for pair in record.keys.pairs})
            case "removed_key":
                run.keys.delete(record.removed_key)
        if record.request_id:
            run.keys.remember(record.request_id, record.response.value)

    def _records(self) -> Iterator[RendezvousRecord]:
        """All that there is."""
        for run_id, run in self._runs.items():
            if run.state.version:
                change, _ = run.state.since(None)
                state = SetStateRequest(
                    change=change, whole=True, min_nodes=run.state.min_nodes, max_nodes=run.state.max_nodes
                )
                state.keep_alive.FromMicroseconds(int(run.state.keep_alive * 1e6))
                yield RendezvousRecord(run_id=run_id, state=state)
            for key, value in run.keys.items():
                yield RendezvousRecord(run_id=run_id, keys=SetKeysRequest(pairs=[KeyValue(key=key, value=value)]))
            for request_id, result in run.keys.made():
                response = ChangeKeyResponse(value=result)
                yield RendezvousRecord(run_id=run_id, request_id=request_id, response=response)
