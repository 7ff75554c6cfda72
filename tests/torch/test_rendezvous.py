"""torch's rendezvous on a real server: what torch's own tests ask of c10d's and etcd's backends, and of their stores.

The demands are those of test/distributed/elastic/rendezvous in torch's repository: stale and foreign tokens, writers at
once, a state that is corrupt, a server that is away. What is written are states of torch's engine.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import pickle
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.elastic import events
from torch.distributed.elastic.events import handlers
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStateError,
)
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
    RendezvousTimeout,
)
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from edriver.rendezvous.torchrun import backend as backends
from edriver.rendezvous.torchrun.backend import EdriverBackend
from edriver.rendezvous.torchrun.client import RendezvousClient
from edriver.rendezvous.torchrun.engine import EVENTS, EdriverRendezvousHandler
from edriver.rendezvous.torchrun.replica import Replica
from edriver.rendezvous.torchrun.store import RendezvousStore
from edriver.v1.rendezvous_pb2 import GetStateRequest, KeyValue, SetKeysRequest, StateToken
from tests.rendezvous_server import Server, serving
from tests.torch.engine_states import A, B, read, state_of
from tests.waiting import until

TIMEOUT = 60.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("rendezvous")) as server:
        yield server


@pytest.fixture
def run_id(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)


@pytest.fixture
def connect(server: Server) -> Iterator[Callable[[], RendezvousClient]]:
    """Opens connections: each is another process, as far as the server knows."""
    opened: list[RendezvousClient] = []

    def connect() -> RendezvousClient:
        opened.append(RendezvousClient(server.endpoint, server.credentials))
        return opened[-1]

    yield connect
    for connection in opened:
        connection.close()


@pytest.fixture
def make(
    connect: Callable[[], RendezvousClient], run_id: str, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., EdriverBackend]:
    monkeypatch.setattr(backends, "REFRESH_INTERVAL", 0.0)
    made = []  # a state can be read for as long as the backend that has returned it lives

    def make(nodes: tuple[int, int] = (8, 9), keep_alive: float = 15.0) -> EdriverBackend:
        made.append(EdriverBackend(connect(), Replica(), run_id, nodes, keep_alive, TIMEOUT))
        return made[-1]

    return make


# ---- the backend -------------------------------------------------------------------------------------------------


def test_there_is_no_state_before_the_first_writer(make: Callable[..., EdriverBackend]) -> None:
    backend = make()
    assert backend.name == "edriver"
    assert backend.get_state() is None


def test_the_first_writer_sets_the_state_and_others_read_it(make: Callable[..., EdriverBackend]) -> None:
    written = make().set_state(state_of(A, number=3))
    assert written is not None
    assert written[2]
    found = make().get_state()
    assert read(found).round == 3
    assert read(found).participants == {A: 0}
    assert found is not None
    assert found[1] == written[1]


def test_without_a_token_an_existing_state_stays(make: Callable[..., EdriverBackend]) -> None:
    first = make().set_state(state_of(A))
    second = make().set_state(state_of(B))
    assert first is not None
    assert second is not None
    assert not second[2]
    assert second[1] == first[1]
    assert read(second).participants == {A: 0}


def test_a_token_that_is_the_present_one_replaces_the_state(make: Callable[..., EdriverBackend]) -> None:
    first = make().set_state(state_of(A))
    assert first is not None
    second = make().set_state(state_of(B), first[1])
    assert second is not None
    assert second[2]
    assert second[1] != first[1]
    assert read(make().get_state()).participants == {B: 0}


@pytest.mark.parametrize(
    "token", [StateToken(incarnation=1, version=99), StateToken(incarnation=99, version=1), "foreign", b"x", 7]
)
def test_a_stale_or_foreign_token_changes_nothing(make: Callable[..., EdriverBackend], token: object) -> None:
    first = make().set_state(state_of(A))
    second = make().set_state(state_of(B), token)
    assert first is not None
    assert second is not None
    assert not second[2]
    assert second[1] == first[1]
    assert read(second).participants == {A: 0}


def test_one_of_many_that_write_the_whole_state_at_once_wins(make: Callable[..., EdriverBackend]) -> None:
    first = make().set_state(state_of(A))
    assert first is not None
    writers = [make() for _ in range(8)]
    with ThreadPoolExecutor(len(writers)) as pool:
        answers = list(
            pool.map(lambda it: it[1].set_state(state_of(A, number=it[0] + 1), first[1]), enumerate(writers))
        )
    won = [number for number, answer in enumerate(answers) if answer and answer[2]]
    assert len(won) == 1
    assert {read(answer).round for answer in answers} == {won[0] + 1}


def test_engines_that_add_themselves_at_once_all_get_in(make: Callable[..., EdriverBackend]) -> None:
    make().set_state(state_of(A))
    seen = [(backend, backend.get_state()) for backend in (make(nodes=(50, 60)) for _ in range(6))]
    for number, (backend, found) in enumerate(seen):
        state, node = read(found), dataclasses.replace(B, local_id=number)
        state.participants[node] = 0
        state.last_heartbeats[node] = datetime.now(UTC)
        assert found is not None
        answer = backend.set_state(pickle.dumps(state), found[1])
        assert answer is not None
        assert answer[2]
    assert len(read(make().get_state()).participants) == 7


def test_a_writer_that_succeeds_sees_its_own_change_at_once_and_those_of_others_when_it_asks(
    make: Callable[..., EdriverBackend],
) -> None:
    make().set_state(state_of(A))
    backends = [make(nodes=(50, 60)) for _ in range(2)]
    seen = [backend.get_state() for backend in backends]
    nodes = [dataclasses.replace(B, local_id=number) for number in range(2)]
    for backend, found, node in zip(backends, seen, nodes, strict=True):
        state = read(found)
        state.participants[node] = 0
        assert found is not None
        answer = backend.set_state(pickle.dumps(state), found[1])
        assert answer is not None
        assert answer[2]
        assert read(answer).participants.keys() == {A, node}
    assert read(backends[0].get_state()).participants.keys() == {A, *nodes}


def test_a_change_that_rests_on_what_has_been_left_out_is_refused(make: Callable[..., EdriverBackend]) -> None:
    """Two nodes join at once; the second would have been the one that makes the round complete."""
    make().set_state(state_of(A))
    backends = [make(nodes=(1, 3)) for _ in range(2)]
    seen = [backend.get_state() for backend in backends]
    answers = []
    for number, (backend, found) in enumerate(zip(backends, seen, strict=True)):
        state = read(found)
        state.participants[dataclasses.replace(B, local_id=number)] = 0
        assert found is not None
        answers.append(backend.set_state(pickle.dumps(state), found[1]))
    assert [answer and answer[2] for answer in answers] == [True, False]
    assert len(read(answers[1]).participants) == 2


@pytest.mark.parametrize("state", [b"no pickle", pickle.dumps({"round": 1})])
def test_what_is_no_state_is_corrupt(make: Callable[..., EdriverBackend], state: bytes) -> None:
    with pytest.raises(RendezvousStateError, match="corrupt"):
        make().set_state(state)


def test_a_node_that_is_silent_is_dead_to_the_engine_and_others_are_not(make: Callable[..., EdriverBackend]) -> None:
    make(keep_alive=0.001).set_state(state_of(A, B))
    state = read(make().get_state())
    assert state.last_heartbeats.keys() == {A, B}
    assert max(state.last_heartbeats.values()) < datetime.now(UTC) - timedelta(days=1)


def test_nothing_is_unpickled_that_comes_over_the_network(connect: Callable[[], RendezvousClient], run_id: str) -> None:
    """A store holds whatever a client sends; a state is protobuf, and has no field for bytes."""
    fields = GetStateRequest.DESCRIPTOR.file.message_types_by_name
    seen, pending = set(), [fields["GetStateResponse"], fields["SetStateResponse"]]
    while pending:
        message = pending.pop()
        if message.full_name not in seen:
            seen.add(message.full_name)
            pending += [field.message_type for field in message.fields if field.message_type]
            assert not [field.name for field in message.fields if field.type == field.TYPE_BYTES]


def test_a_client_without_the_token_is_refused(server: Server, run_id: str) -> None:
    foreign = dataclasses.replace(server.credentials, token="guessed")
    backend = EdriverBackend(RendezvousClient(server.endpoint, foreign), Replica(), run_id, (1, 2), 15.0, TIMEOUT)
    with pytest.raises(RendezvousConnectionError, match="its credentials are another server's"):
        backend.get_state()


def test_a_value_that_is_too_large_is_refused(connect: Callable[[], RendezvousClient], run_id: str) -> None:
    request = SetKeysRequest(run_id=run_id, pairs=[KeyValue(key="k", value=bytes(9 * 1024 * 1024))])
    with pytest.raises(RendezvousError, match=r"KeyValue.value has \d+ bytes: at most 8388608 are allowed"):
        connect().call(connect().store.SetKeys, request, TIMEOUT)


# ---- the store ---------------------------------------------------------------------------------------------------


@pytest.fixture(params=["plain", "with-prefix"])
def store(request: pytest.FixtureRequest, connect: Callable[[], RendezvousClient], run_id: str) -> Iterator[Any]:
    made = RendezvousStore(connect(), run_id, TIMEOUT)
    yield made if request.param == "plain" else PrefixStore("prefix", made)
    made.num_keys()  # a PrefixStore does not keep it alive; torch's handler does


def test_a_store_has_torchs_whole_interface(store: Any) -> None:
    store.set("a", "1")
    assert store.get("a") == b"1"
    assert [store.add("n", 2), store.add("n", -5)] == [2, -3]
    assert store.get("n") == b"-3"
    assert store.check(["a", "n"])
    assert not store.check(["a", "missing"])
    store.wait(["a", "n"])
    store.wait(["a"], timedelta(seconds=5))
    assert store.compare_set("c", "x", "y") == b"x"
    assert store.compare_set("c", "", "y") == b"y"
    assert store.compare_set("c", "y", "z") == b"z"
    assert store.compare_set("c", "y", "0") == b"z"
    store.append("a", "2")
    store.append("new", "3")
    assert store.multi_get(["a", "new"]) == [b"12", b"3"]
    store.multi_set(["m", "o"], ["4", "5"])
    assert store.multi_get(["o", "m"]) == [b"5", b"4"]
    assert store.num_keys() == 6
    assert store.delete_key("m")
    assert not store.delete_key("m")
    assert store.num_keys() == 5
    assert store.has_extended_api()


def test_a_wait_ends_with_the_timeout(store: Store) -> None:
    with pytest.raises(dist.DistStoreError, match=r"'(prefix/)?missing': not all keys were set within 0\.05 s"):
        store.wait(["missing"], timedelta(seconds=0.05))
    store.set_timeout(timedelta(seconds=0.05))
    with pytest.raises(dist.DistStoreError, match=r"not all keys were set within 0\.05 s"):
        store.get("missing")


def test_a_value_may_be_any_bytes(connect: Callable[[], RendezvousClient], run_id: str) -> None:
    store = RendezvousStore(connect(), run_id, TIMEOUT)
    store.set("k", bytes(range(256)))
    assert store.get("k") == bytes(range(256))


def test_a_get_waits_for_another_to_set(connect: Callable[[], RendezvousClient], run_id: str) -> None:
    mine, others = (RendezvousStore(connect(), run_id, TIMEOUT) for _ in range(2))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(mine.multi_get, ["x", "y"])
        others.set("x", "1")
        others.set("y", "2")
        assert waiting.result(TIMEOUT) == [b"1", b"2"]


def test_the_address_of_a_rounds_store_comes_with_its_port(
    connect: Callable[[], RendezvousClient], run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RendezvousStore(connect(), run_id, TIMEOUT)
    prefix = f"torch.rendezvous.{run_id}.0"
    store.multi_set([f"{prefix}/MASTER_ADDR", f"{prefix}/MASTER_PORT", "x/MASTER_ADDR"], ["a", "1", "b"])
    asked = []
    multi_get = store.multi_get

    def counted(keys: Sequence[str]) -> list[bytes]:
        asked.append(keys)
        return multi_get(keys)

    monkeypatch.setattr(store, "multi_get", counted)
    assert [store.get(f"{prefix}/MASTER_{name}") for name in ("ADDR", "PORT")] == [b"a", b"1"]
    assert len(asked) == 1
    store.set(f"{prefix}/MASTER_PORT", "2")
    assert store.get(f"{prefix}/MASTER_PORT") == b"2"
    assert store.get("x/MASTER_ADDR") == b"b"


def test_many_who_add_at_once_lose_nothing(connect: Callable[[], RendezvousClient], run_id: str) -> None:
    stores = [RendezvousStore(connect(), run_id, TIMEOUT) for _ in range(4)]
    with ThreadPoolExecutor(8) as pool:
        sums = list(pool.map(lambda number: stores[number % 4].add("n", 1), range(80)))
    assert sorted(sums) == list(range(1, 81))


def test_runs_do_not_share_keys(connect: Callable[[], RendezvousClient], run_id: str) -> None:
    RendezvousStore(connect(), run_id, TIMEOUT).set("k", "v")
    assert not RendezvousStore(connect(), "another", TIMEOUT).check(["k"])


# ---- torch's engine ----------------------------------------------------------------------------------------------


Engine = Callable[..., EdriverRendezvousHandler]


@pytest.fixture
def engine(connect: Callable[[], RendezvousClient], run_id: str) -> Iterator[Engine]:
    """Makes torch's handler as an agent of torchrun has it, on a backend of its own."""
    made: list[EdriverRendezvousHandler] = []

    def engine(least: int = 2, most: int = 2, last_call: float = 30.0, run: str = run_id) -> EdriverRendezvousHandler:
        connection = connect()
        backend = EdriverBackend(connection, Replica(), run, (least, most), 15.0, TIMEOUT)
        timeout = RendezvousTimeout(last_call=timedelta(seconds=last_call))
        store = RendezvousStore(connection, run, TIMEOUT)
        made.append(EdriverRendezvousHandler.from_backend(run, store, backend, least, most, "127.0.0.1", timeout))
        return made[-1]

    yield engine
    for handler in made:
        handler._stop_heartbeats()


def wait_for_another(handler: EdriverRendezvousHandler) -> None:
    """Wait until an engine waits for the next round."""
    until(handler.num_nodes_waiting, "another engine waits")  # torch's agent polls, too


def joins(handler: EdriverRendezvousHandler, size: int) -> RendezvousInfo:
    """Join rounds, as torch's agent does when another engine waits, until one has this size.

    A round takes the nodes that have joined before the last call is over: on a busy machine that may be two of three.
    """
    while (info := handler.next_rendezvous()).world_size < size:
        wait_for_another(handler)
    return info


def test_engines_join_wait_and_close(engine: Engine) -> None:
    """Two join; a third, while there is room, waits for the next round; the fourth finds a closed rendezvous."""
    handlers = [engine(2, 3, last_call=0.1) for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        pair = [pool.submit(handler.next_rendezvous) for handler in handlers[:2]]
        found = [future.result(TIMEOUT) for future in pair]
        assert sorted(info.rank for info in found) == [0, 1]
        assert {info.world_size for info in found} == {2}
        late = pool.submit(joins, handlers[2], 3)
        wait_for_another(handlers[0])
        again = [pool.submit(joins, handler, 3) for handler in handlers[:2]]
        found = [future.result(TIMEOUT) for future in (*again, late)]
        assert sorted(info.rank for info in found) == [0, 1, 2]
        addresses = [info.bootstrap_store_info for info in found if info.bootstrap_store_info]
        assert len({address.master_port for address in addresses}) == 1
    handlers[0].set_closed()
    with pytest.raises(RendezvousClosedError):
        engine(2, 3).next_rendezvous()


def test_an_engine_beyond_the_maximum_is_redundant(
    engine: Engine, make: Callable[..., EdriverBackend], run_id: str
) -> None:
    handlers = [engine(1, 1), engine(1, 1)]
    handlers[0].next_rendezvous()
    with ThreadPoolExecutor(1) as pool:
        redundant = pool.submit(handlers[1].next_rendezvous)
        watcher = make()
        while not read(watcher.get_state()).redundancy_list:
            assert not redundant.done()
        handlers[0].set_closed()
        with pytest.raises(RendezvousError):
            redundant.result(TIMEOUT)


def test_torchs_registry_makes_a_handler_of_the_parameters(server: Server, run_id: str) -> None:
    """As torchrun does: through the entry point, which an installed edriver has."""
    parameters = RendezvousParameters(
        "edriver", server.endpoint, run_id, 1, 1, "127.0.0.1", credentials=str(server.credentials_file)
    )
    handler = get_rendezvous_handler(parameters)
    info = handler.next_rendezvous()
    assert (handler.get_backend(), info.rank, info.world_size) == ("edriver", 0, 1)
    info.store.set("k", "v")
    assert info.store.get("k") == b"v"
    assert handler.shutdown()


def test_without_credentials_a_handler_says_where_to_get_them(server: Server, run_id: str, tmp_path: Path) -> None:
    parameters = RendezvousParameters("edriver", server.endpoint, run_id, 1, 1, credentials=str(tmp_path / "none"))
    with pytest.raises(RendezvousConnectionError, match="copy the file that `edriver rendezvous` names"):
        get_rendezvous_handler(parameters)


def test_events_are_recorded_where_a_handler_is_installed_with_torchs_names(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded: list[str] = []

    class Recorder(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            recorded.append(json.loads(record.getMessage())["name"])

    assert engine(1, 1, run="quiet").next_rendezvous().rank == 0
    assert recorded == []
    monkeypatch.setitem(handlers._log_handlers, EVENTS, Recorder())
    monkeypatch.setattr(events, "_events_loggers", {})
    assert engine(1, 1).next_rendezvous().rank == 0
    assert "dynamic_rendezvous.py:_DistributedRendezvousOpExecutor._add_to_participants" in recorded
    assert "dynamic_rendezvous.py:EdriverRendezvousHandler.next_rendezvous" in recorded
