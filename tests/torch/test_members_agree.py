"""What the members of a round must have alike, in every release with this PROTOCOL.

Where this fails, workers of this release and of one before would hang in a round, or train on other samples than the
others believe. Then either undo the change, or let PROTOCOL grow and record the new values: see release.py.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

import torch

from edriver.common.release import PROTOCOL
from edriver.model.ids import RoundId
from edriver.wire import store_protocol
from edriver.worker.group.membership_proof import MembershipProof
from edriver.worker.sampler.permutation import Permutation
from edriver.worker.state import resharding
from edriver.worker.sync import relay
from edriver.worker.sync.packing import Layout
from edriver.worker.sync.sync import SyncRecord, TensorOutline

RECORDED: Final[dict[str, Any]] = {
    "requests to the store": [0, 1, 2, 3, 4, 5, 6, 7, 8],
    "their heads": ("!BIII", "!II"),
    "a list of keys": "0000000161000000026263",
    "the proof of a connection": "8ec15afc1acba38acf308d7d7e56504dd0ca840fa5b6789b8e40ed4eaa23277e",
    "the record of a sync": "1598d7d93e7ce628f08e689562df3817a9eeee72c2c44f229c865d088b61aa0e",
    "that of a long chain": "0100100000",
    "what is said of a tensor": ("start", "dtype", "shape", "device_type", "requires_grad", "is_parameter", "inside"),
    "where tensors begin": [0, 64, 256, 320],
    "what is sent at a time": (4194304, 8),
    "the rows of shards, by message": (1048576, [[4, 64], [1048576], [2097152]]),
    "the order of few samples": [0, 7, 3, 4, 8, 9, 2, 6, 5, 1],
    "the order of many": "42d6a9fec779567b1ff1b22a07ebbb694e3f4035dbb5bdda35642ca98540888e",
}


def found() -> dict[str, Any]:
    """The same, as this release has it."""
    requests = ["SET", "GET", "ADD", "CHECK", "APPEND", "MULTI_GET", "COMPARE_SET", "DELETE", "COUNT"]
    layout = Layout()
    tensors = torch.zeros(3), torch.zeros(17, dtype=torch.float64), torch.zeros(1, dtype=torch.int8)
    proof = MembershipProof(b"k" * 32, RoundId(1, 2), "default").proof_of(0, 1)
    rows = [torch.zeros(length, dtype=torch.uint8) for length in (4, 2**20, 0, 2**21, 64)]
    large = Permutation(10**9, 3, 1).order(torch.arange(0, 10**9, 10**5))
    return {
        "requests to the store": [getattr(store_protocol, name) for name in requests],
        "their heads": (store_protocol.REQUEST_FORMAT.format, store_protocol.REPLY_FORMAT.format),
        "a list of keys": store_protocol.as_list([b"a", b"bc"]).hex(),
        "the proof of a connection": proof.hex(),
        "the record of a sync": hashlib.sha256(SyncRecord(96, 64, bytes(range(32)), False, 2**22).text()).hexdigest(),
        "that of a long chain": SyncRecord(96, 64, bytes(32), True, 2**20).text()[-5:].hex(),
        "what is said of a tensor": TensorOutline._fields,
        "where tensors begin": [layout.add(tensor) for tensor in tensors] + [layout.length],
        "what is sent at a time": (relay.PIECE_BYTES, relay.window_of(relay.PIECE_BYTES)),
        "the rows of shards, by message": (
            resharding.APART_BYTES,
            [[part.nbytes for part in parts] for parts in resharding.messages_of(rows)],
        ),
        "the order of few samples": Permutation(10, 3, 1).order(torch.arange(10)).tolist(),
        "the order of many": hashlib.sha256(large.numpy().tobytes()).hexdigest(),
    }


def test_members_of_this_protocol_have_it_alike() -> None:
    assert PROTOCOL == 1, "record the values anew"
    assert found() == RECORDED
