"""Which exceptions mean that a peer is lost. Gloo's own are raised for real in test_group.py and test_sever.py."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from edriver.worker.backend.peer_loss import looks_like_peer_loss
from edriver.worker.errors import PeerLostError

PAIR = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] "
BUFFER = "[/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] "


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(PeerLostError("severed"), id="severed"),
        pytest.param(dist.DistNetworkError("Failed to recv, got 0 bytes."), id="store-closed"),
        pytest.param(dist.DistStoreError("wait timeout after 300000ms"), id="store-timeout"),
        pytest.param(RuntimeError(PAIR + "Connection closed by peer [10.0.0.1]:9"), id="closed"),
        pytest.param(RuntimeError(PAIR + "Read error [10.0.0.1]:9: Connection reset by peer."), id="reset"),
        pytest.param(RuntimeError(BUFFER + "Timed out waiting 20000ms for recv operation"), id="timeout"),
        pytest.param(dist.DistBackendError("NCCL communicator was aborted on rank 1."), id="nccl-aborted"),
        pytest.param(RuntimeError("Gloo connectFullMesh failed with " + PAIR + "Socket closed"), id="building"),
        pytest.param(RuntimeError("[Rank 0]: Rank 2 failed to pass monitoredBarrier in 3000 ms"), id="monitored"),
    ],
)
def test_a_lost_peer(error: Exception) -> None:
    assert looks_like_peer_loss(error)


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(RuntimeError("mat1 and mat2 shapes cannot be multiplied (4x3 and 4x2)"), id="shapes"),
        pytest.param(RuntimeError("DataLoader worker (pid 7) exited unexpectedly"), id="data-loader"),
        pytest.param(RuntimeError("[enforce fail at gloo/transport/tcp/pair.cc:456] 20 vs 12."), id="mismatch"),
        pytest.param(torch.AcceleratorError("CUDA error: an illegal memory access was encountered"), id="device"),
        pytest.param(ConnectionResetError("Connection reset by peer"), id="the-scripts-own-connection"),
        pytest.param(ValueError(PAIR), id="not-from-torch"),
        pytest.param(KeyboardInterrupt(), id="ctrl-c"),
    ],
)
def test_the_scripts_own_error(error: BaseException) -> None:
    assert not looks_like_peer_loss(error)


@pytest.mark.parametrize("chain", ["from", "while handling", "from None"])
def test_an_error_that_a_loss_led_to_is_a_loss(chain: str) -> None:
    with pytest.raises(ValueError) as raised:
        _fail_a_step(chain)
    assert looks_like_peer_loss(raised.value)


def _fail_a_step(chain: str) -> None:
    try:
        raise RuntimeError(PAIR + "Connection closed by peer")
    except RuntimeError as loss:
        if chain == "from":
            raise ValueError("step failed") from loss
        if chain == "from None":
            raise ValueError("step failed") from None
        raise ValueError("step failed")  # noqa: B904  the context is what is tested


def test_a_chain_that_bites_its_tail_ends() -> None:
    error = ValueError()
    error.__cause__ = KeyError()
    error.__cause__.__cause__ = error
    assert not looks_like_peer_loss(error)
