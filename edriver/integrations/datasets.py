"""Hugging Face Datasets in edriver's rounds: an IterableDataset as an ElasticStream. Checked with datasets 5.2.0."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from edriver.worker.sampler.elastic_stream import ElasticStream


def elastic_stream(dataset: Any, *, shuffle: bool = True, seed: int = 0) -> ElasticStream:
    """Return an ElasticStream of a dataset, which usually has as many shards as files.

    Args:
        dataset: the `datasets.IterableDataset`, after `map`, `filter` and the like, but not split among workers.
        shuffle: see ElasticStream.
        seed: see ElasticStream.

    Raises:
        TypeError: `dataset` is not an IterableDataset.
        ValueError: `dataset` has a shuffle buffer, whose state cannot be kept.
    """
    read = ReadShard(dataset)
    return ElasticStream(range(dataset.num_shards), read, shuffle=shuffle, seed=seed)


class ReadShard:
    """Reads a shard of a dataset, whose state_dict and load_state_dict it uses.

    Args:
        dataset: the IterableDataset.

    Raises:
        TypeError: `dataset` is not an IterableDataset.
        ValueError: `dataset` has a shuffle buffer.
    """

    def __init__(self, dataset: Any) -> None:
        if not all(hasattr(dataset, name) for name in ("num_shards", "shard", "state_dict", "load_state_dict")):
            raise TypeError(
                f"a {type(dataset).__name__} is not a datasets.IterableDataset: load it with streaming=True, or call "
                "its "
                "to_iterable_dataset(num_shards=...); for a map-style dataset use edriver.ElasticSampler"
            )
        if any(name.startswith("BufferShuffled") for name in _parts(dataset)):
            raise ValueError(
                "the dataset has a shuffle buffer, whose contents are not part of its state: samples would be lost "
                "when reading is resumed. Leave shuffle(buffer_size=...) out: the ElasticStream shuffles shards; "
                "shuffle the samples within a shard when you write the files"
            )
        self._dataset = dataset

    def __call__(self, shard: int) -> Iterable[Any]:
        """The shard's samples."""
        part: Iterable[Any] = self._dataset.shard(num_shards=self._dataset.num_shards, index=shard)
        return part


def _parts(dataset: Any) -> Iterator[str]:
    """The classes of a dataset's parts.

    `_ex_iterable` is private, but there is no public way to detect a shuffle buffer; without the attribute, none is
    detected.
    """
    left = [getattr(dataset, "_ex_iterable", None)]
    while left:
        part = left.pop()
        if part is not None:
            yield type(part).__name__
            left += [getattr(part, "ex_iterable", None), *getattr(part, "ex_iterables", ())]
