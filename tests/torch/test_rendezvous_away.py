"""torch's rendezvous while its server is away."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest
import torch.distributed as dist
from torch.distributed.elastic.rendezvous.api import RendezvousConnectionError

from edriver.rendezvous.torchrun import backend as backends
from edriver.rendezvous.torchrun.backend import EdriverBackend
from edriver.rendezvous.torchrun.client import RendezvousClient
from edriver.rendezvous.torchrun.replica import Replica
from edriver.rendezvous.torchrun.store import RendezvousStore
from tests.rendezvous_server import serving
from tests.torch.engine_states import A, B, read, state_of

TIMEOUT = 60.0


def test_a_restarted_server_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "REFRESH_INTERVAL", 0.0)
    with serving(tmp_path / "server") as server:
        connection = RendezvousClient(server.endpoint, server.credentials)
        backend = EdriverBackend(connection, Replica(), "r", (8, 9), 15.0, TIMEOUT)
        store = RendezvousStore(connection, "r", TIMEOUT)
        first = backend.set_state(state_of(A))
        assert first is not None
        assert store.add("count", 1) == 1
        server.kill()
        beat = read(backend.get_state())
        assert beat.participants == {A: 0}, "what was known last"
        beat.last_heartbeats[A] = datetime.now(UTC)
        unheard = backend.set_state(pickle.dumps(beat), first[1])
        assert unheard is not None
        assert unheard[2], "torch's agent would end its workers"
        beat = read(unheard)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(store.get, "later")
            server.start()
            state = beat
            state.wait_list.add(B)
            second = backend.set_state(pickle.dumps(state), first[1])
            assert second is not None
            assert not second[2], "tokens of the last start are stale"
            state = read(second)
            state.wait_list.add(B)
            third = backend.set_state(pickle.dumps(state), second[1])
            assert third is not None
            assert third[2]
            assert store.add("count", 1) == 2
            store.set("later", "value")
            assert waiting.result(TIMEOUT) == b"value"
        connection.close()


def test_who_has_never_reached_the_server_says_so_after_its_limit(tmp_path: Path) -> None:
    with serving(tmp_path / "server") as server:
        gone = server.credentials
    connection = RendezvousClient(gone.drivers[0], gone)
    backend = EdriverBackend(connection, Replica(), "r", (1, 2), 15.0, limit=0.3)
    with pytest.raises(RendezvousConnectionError, match="cannot be reached"):
        backend.get_state()
    with pytest.raises(dist.DistNetworkError, match="cannot be reached"):
        RendezvousStore(connection, "r", 0.3).set("k", "v")
    connection.close()
