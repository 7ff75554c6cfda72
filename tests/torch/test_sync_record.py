"""What a receiver unpickles is what the source has recorded in the store, and nothing else."""

from __future__ import annotations

import io
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from edriver.worker.errors import PeerLostError
from edriver.worker.sync import relay, sync
from edriver.worker.sync.sync import SyncRecord
from tests.torch.synced_states import Custom, new_state, sent, train


def test_what_was_sent_is_unpacked() -> None:
    stream, record = sent({"a": torch.arange(3), "b": [1.5, "two", {3}]})
    tree = sync._unpacked(stream, record)
    assert tree["a"].tolist() == [0, 1, 2]
    assert tree["b"] == [1.5, "two", {3}]


class Command:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.folder),)


def test_nothing_of_what_the_source_has_not_recorded_is_unpickled(tmp_path: Path) -> None:
    stream, record = sent({"a": torch.arange(3), "b": " " * 1000})  # room for an attack with a long path
    attack = pickle.dumps(Command(tmp_path / "made"))
    stream[record.end : record.end + len(attack)] = torch.frombuffer(bytearray(attack), dtype=torch.uint8)
    with pytest.raises(PeerLostError, match="differs from what the source sent"):
        sync._unpacked(stream, record)
    assert not (tmp_path / "made").exists()


def test_one_byte_more_or_less_in_the_pickled_part_is_noticed() -> None:
    stream, record = sent({"a": torch.arange(3), "b": "plain"})
    for at in range(record.end, record.length):
        stream[at] ^= 1
        with pytest.raises(PeerLostError):
            sync._unpacked(stream, record)
        stream[at] ^= 1
    sync._unpacked(stream, record)


def test_a_state_of_tensors_and_plain_values_looks_up_no_class(tmp_path: Path) -> None:
    state = new_state(seed=1)
    train(state, 2)
    state.computes_in.begin()
    _, record = sent((state._capture(), state.computes_in.sent()))
    assert not record.classes
    text = io.BytesIO(pickle.dumps(Command(tmp_path / "made")))
    with pytest.raises(pickle.UnpicklingError, match="mkdir does not belong in a state"):
        sync._TreeUnpickler(text, [], record.classes).load()
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    "held", [Custom(torch.arange(3.0)), lambda x: x + 1, Custom], ids=["object", "lambda", "class"]
)
def test_classes_are_looked_up_where_the_source_has_recorded_that_its_state_holds_some(held: Any) -> None:
    stream, record = sent({"held": held})
    assert record.classes
    tree = sync._unpacked(stream, record)
    assert type(tree["held"]) is type(held)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\0" * 48,
        SyncRecord(64, 128, bytes(32), False, relay.PIECE_BYTES).text(),
        SyncRecord(128, 64, bytes(32), False, 0).text(),
    ],
    ids=str,
)
def test_a_record_that_is_none_is_refused(text: bytes) -> None:
    with pytest.raises(PeerLostError, match="record"):
        SyncRecord.read(text)
