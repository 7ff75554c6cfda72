"""A Hugging Face dataset in streaming mode, in the processes of a loader, with a worker killed: each sample once."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from edriver.integrations.datasets import elastic_stream
from tests.needs import DATASETS, require
from tests.process.running import running

SCRIPT = Path(__file__).with_name("scripts") / "hf_stream.py"
LENGTHS = [41, 7, 60, 33, 18]

pytestmark = [pytest.mark.libraries, pytest.mark.timeout(900)]


def write_corpus(folder: Path) -> list[str]:
    folder.mkdir()
    files = []
    for shard, length in enumerate(LENGTHS):
        file = folder / f"{shard}.jsonl"
        file.write_text("".join(json.dumps({"text": f"{shard} {row}"}) + "\n" for row in range(length)))
        files.append(str(file))
    return files


def load(folder: Path) -> Any:
    require(DATASETS)
    import datasets

    files = write_corpus(folder / "corpus")
    return datasets.load_dataset("json", data_files=files, split="train", streaming=True, cache_dir=str(folder / "c"))


def everything() -> Counter[str]:
    return Counter(f"{shard} {row}" for shard, length in enumerate(LENGTHS) for row in range(length))


def test_each_sample_is_trained_on_once_though_a_worker_is_killed(tmp_path: Path) -> None:
    require(DATASETS)
    write_corpus(tmp_path / "corpus")
    environ = {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    with running(["-np", "2", "--min-np", "1", sys.executable, str(SCRIPT)], tmp_path, environ) as run:
        assert run.end() == 0, run.text
        assert "was killed by SIGKILL" in run.text
        trained = json.loads((tmp_path / "trained").read_text())
        assert all(count >= 1 for row, length in zip(trained, LENGTHS, strict=False) for count in row[:length])
        assert sum(map(sum, trained)) - sum(LENGTHS) <= 1, "a row of the last batch, of two workers"


def test_a_dataset_is_read_whole_in_the_processes_of_a_loader(tmp_path: Path) -> None:
    """It shards itself by get_worker_info(), which is hidden from it, or each process would read a part."""
    dataset = load(tmp_path)
    shard = dataset.shard(num_shards=len(LENGTHS), index=0)
    assert shard.num_shards == 1
    alone = [row["text"] for row in shard]
    loader: Any = DataLoader(ReadInProcess(shard), batch_size=None, num_workers=2)  # type: ignore[arg-type]
    assert [len(texts) for texts in loader] != [len(alone)] * 2, "what goes wrong without"
    stream = elastic_stream(dataset)
    batches = stream.loader(4, num_workers=2, drop_last=False, collate_fn=texts_of)
    assert Counter(text for batch in batches for text in batch) == everything()


class ReadInProcess:
    """Two samples, each of them all that a process reads of a dataset."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> list[str]:
        if index == 2:
            raise IndexError
        return [row["text"] for row in self._dataset]


def texts_of(rows: list[dict[str, str]]) -> list[str]:
    return [row["text"] for row in rows]


def test_reading_is_taken_up_by_the_datasets_own_state(tmp_path: Path) -> None:
    dataset = load(tmp_path).map(
        lambda rows: {"text": [text + "!" for text in rows["text"]]}, batched=True, batch_size=4
    )
    seen: Counter[str] = Counter()
    state = None
    while True:
        stream = elastic_stream(dataset)
        if state is not None:
            stream.load_state_dict(state)
        loader = stream.loader(3, collate_fn=texts_of)
        batches = 0
        for batch in loader:
            seen.update(batch)
            batches += 1
            if batches == 11:  # not at the end of a block: some samples have been read and not handed out
                break
        state = json.loads(json.dumps(stream.state_dict()))
        if batches < 11:
            break
        assert any(begun["reader"] for begun in state["begun"].values())
    assert seen == Counter(f"{text}!" for text in everything())


def test_a_shuffle_buffer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the dataset has a shuffle buffer"):
        elastic_stream(load(tmp_path).shuffle(seed=0, buffer_size=10))


def test_a_map_style_dataset_is_refused() -> None:
    require(DATASETS)
    import datasets

    with pytest.raises(TypeError, match=r"to_iterable_dataset"):
        elastic_stream(datasets.Dataset.from_dict({"text": ["a"]}))
