from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engines.slurm.cluster import Cluster, cluster


@pytest.fixture(scope="session")
def one_cluster() -> Iterator[Cluster]:
    with cluster() as made:
        yield made


@pytest.fixture
def slurm(one_cluster: Cluster) -> Iterator[Cluster]:
    """A cluster on which nothing runs, and all nodes are idle."""
    one_cluster.clear()
    yield one_cluster
    one_cluster.clear()
