"""The rendezvous server under any sequence of valid requests: what it answers and keeps, and what its bounds allow."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edriver.model.limits import OutOfBoundsError
from edriver.rendezvous.server import key_values
from edriver.rendezvous.server.journal import ServerJournal
from edriver.rendezvous.server.run_state import RunState, is_in, key_of
from edriver.rendezvous.server.runs import Runs
from edriver.system.private_files import OwnFolder
from edriver.v1.rendezvous_pb2 import (
    ChangeKeyRequest,
    CompareSet,
    DeleteKey,
    KeyValue,
    NodeEntry,
    RendezvousNode,
    SetKeysRequest,
    SetStateRequest,
    StateChange,
    StateToken,
)
from edriver.wire.store_protocol import as_list, items_of
from edriver.wire.store_values import NotANumberError

# ---- keys -----------------------------------------------------------------------------------------------------

MAX_BYTES, MAX_KEYS = 450, 4
"""Bounds that a few requests reach."""

KEYS = st.sampled_from(["a", "b", "kéy", "d", "e"]) | st.just("a")
VALUES = st.sampled_from([b"", b"1", b"-7", b"x" * 20, b"x" * 200, b"x" * 300]) | st.binary(max_size=8)
PAIRS = st.lists(st.builds(KeyValue, key=KEYS, value=VALUES), max_size=4)
IDS = st.integers(0, 5).map(lambda number: b"%d" % number)
NUMBERS = st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1)
CHANGES = st.one_of(
    st.builds(ChangeKeyRequest, run_id=st.just("r"), key=KEYS, request_id=IDS, add=NUMBERS),
    st.builds(ChangeKeyRequest, run_id=st.just("r"), key=KEYS, request_id=IDS, append=VALUES),
    st.builds(
        ChangeKeyRequest,
        run_id=st.just("r"),
        key=KEYS,
        request_id=IDS,
        compare_set=st.builds(CompareSet, expected=VALUES, desired=VALUES),
    ),
    st.builds(ChangeKeyRequest, run_id=st.just("r"), key=KEYS, request_id=IDS, delete_key=st.just(DeleteKey())),
)
LARGE = st.sampled_from([b"", b"x" * 200, b"x" * 300])
LARGE_PAIRS = st.lists(st.builds(KeyValue, key=st.sampled_from("ab"), value=LARGE), max_size=3)
"""Of which some make room for others."""

REQUESTS = st.lists(st.builds(SetKeysRequest, run_id=st.just("r"), pairs=PAIRS | LARGE_PAIRS) | CHANGES, max_size=20)


@contextmanager
def small_bounds() -> Iterator[Callable[[], ServerJournal]]:
    """Bounds that a few requests reach; yields what opens the server's journal, in a folder of its own."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(key_values, "MAX_STORE_BYTES", MAX_BYTES)
        patch.setattr(key_values, "MAX_STORE_KEYS", MAX_KEYS)
        patch.setattr(key_values, "ENTRY_BYTES", 10)
        with OwnFolder(Path(folder)) as own:
            yield lambda: ServerJournal(own, Path(folder))


@given(REQUESTS)
def test_keys_are_changed_as_asked_or_not_at_all(requests: list[SetKeysRequest | ChangeKeyRequest]) -> None:
    with small_bounds() as opened:
        journal = opened()
        runs = Runs(journal, lambda: 0.0)
        expected = dict[str, bytes]()
        made = set[bytes]()
        for request in requests:
            remembered, fits = _remembered(runs), False
            try:
                if isinstance(request, SetKeysRequest):
                    wanted = expected | {pair.key: pair.value for pair in request.pairs}
                    fits = _size(wanted) + remembered <= MAX_BYTES and len(wanted) <= MAX_KEYS
                    runs.set_keys(request)
                    assert fits
                    expected = wanted
                else:
                    again = request.request_id in made
                    before = expected.get(request.key)
                    answer = runs.change_key(request)
                    if not again and _is_made(request, before):
                        made.add(request.request_id)
                        _make(request, expected)
                        assert request.HasField("delete_key") or answer.value == expected[request.key]
            except (OutOfBoundsError, NotANumberError):
                assert not fits
            keys = runs.get("r").keys
            assert dict(keys.items()) == expected
            assert keys.size == _size(expected)
            assert keys.size <= MAX_BYTES
            assert len(keys) <= MAX_KEYS
        journal.close()
        again_there = opened()
        run = Runs(again_there, lambda: 0.0).find("r")
        again_there.close()
        assert dict(run.keys.items() if run else ()) == expected
        assert {request_id for request_id, _ in (run.keys.made() if run else ())} == made


def _size(values: dict[str, bytes]) -> int:
    return sum(len(key) + len(value) for key, value in values.items())


def _remembered(runs: Runs) -> int:
    """Bytes of the changes that are remembered."""
    keys = runs.get("r").keys
    return keys.footprint - keys.size - key_values.ENTRY_BYTES * len(keys)


def _is_made(request: ChangeKeyRequest, before: bytes | None) -> bool:
    """Whether a change that is within the bounds changes the key."""
    match request.WhichOneof("change"):
        case "compare_set":
            return (before or b"") == request.compare_set.expected
        case "delete_key":
            return before is not None
        case _:
            return True


def _make(request: ChangeKeyRequest, values: dict[str, bytes]) -> None:
    before = values.get(request.key, b"")
    match request.WhichOneof("change"):
        case "add":
            values[request.key] = b"%d" % (int(before or b"0") + request.add)
        case "append":
            values[request.key] = before + request.append
        case "compare_set":
            values[request.key] = request.compare_set.desired
        case _:
            del values[request.key]


@given(CHANGES)
def test_a_change_that_arrives_twice_is_made_once_and_answered_alike(request: ChangeKeyRequest) -> None:
    keys = key_values.KeyValues()
    first, made = keys.change(request)
    after = dict(keys.items())
    again, made_again = keys.change(request)
    assert made_again is False or not made
    assert not made or (again == first and dict(keys.items()) == after)


# ---- the state of torch's rendezvous --------------------------------------------------------------------------


@dataclass
class Client:
    """A node that knows the state as of some change, and keeps it up to date by what has changed since."""

    token: StateToken | None
    nodes: dict[tuple[str, int, int], NodeEntry]

    def read(self, state: RunState) -> None:
        change, whole = state.since(self.token)
        if whole:
            self.nodes = {}
        for entry in change.nodes:
            if is_in(entry):
                self.nodes[key_of(entry.node)] = entry
            else:
                self.nodes.pop(key_of(entry.node), None)
        self.token = state.token


ENTRIES = st.builds(
    NodeEntry,
    node=st.builds(RendezvousNode, address=st.sampled_from("abc"), pid=st.integers(0, 1)),
    participant=st.booleans(),
    waiting=st.booleans(),
    redundant=st.booleans(),
)
STEPS = st.lists(
    st.tuples(
        st.integers(0, 2),  # which client
        st.integers(0, 2),  # how many changes it reads first: none, or all
        st.builds(
            SetStateRequest,
            change=st.builds(
                StateChange, round=st.integers(0, 1), complete=st.booleans(), nodes=st.lists(ENTRIES, max_size=3)
            ),
            whole=st.booleans(),
            participants=st.integers(0, 4),
            min_nodes=st.just(1),
            max_nodes=st.just(3),
        ),
        st.floats(0.0, 2.0),
    ),
    max_size=25,
)


@given(STEPS)
def test_a_client_that_reads_changes_knows_the_whole_state(
    steps: list[tuple[int, int, SetStateRequest, float]],
) -> None:
    state, now = RunState(incarnation=1), 0.0
    clients = [Client(None, {}) for _ in range(3)]
    for who, reads, request, later in steps:
        now += later
        client = clients[who]
        if reads and state.version:
            client.read(state)
        if client.token is not None:
            request.token.CopyFrom(client.token)
        request.keep_alive.FromMilliseconds(5000)
        state.expire(now)
        before = state.version
        done, changed = state.set(request, now)
        assert done or not changed
        assert (state.version > before) == changed
        assert state.participants == sum(entry.participant for entry in state.nodes)
        whole = {key_of(entry.node): entry for entry in state.since(None)[0].nodes}
        for each in clients:
            copy = Client(each.token, dict(each.nodes))
            if state.version:
                copy.read(state)
                assert copy.nodes == whole


# ---- the store of a round, in its members ------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=20), max_size=6))
def test_a_list_is_read_as_it_was_written(items: list[bytes]) -> None:
    assert list(items_of(as_list(items))) == items


@given(st.binary(max_size=40))
def test_any_bytes_are_a_list_or_refused(data: bytes) -> None:
    try:
        items = list(items_of(data))
    except ValueError:
        return
    assert as_list(items) == data
