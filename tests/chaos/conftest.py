"""What the tests of a replicated cluster share: the clusters, each healed between two tests."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from tests.support.replicated import Replicated

_numbers = itertools.count(1)


@pytest.fixture
def topic() -> str:
    """A name that no other test has."""
    return f"t{next(_numbers)}"


@pytest.fixture(scope="module")
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replicated]:
    """The cluster of a module, as its CLUSTER describes it."""
    with Replicated(tmp_path_factory.mktemp("replicated"), **request.module.CLUSTER) as cluster:
        yield cluster


@pytest.fixture
def cluster(running: Replicated) -> Replicated:
    """The same, healed of what an earlier test may have left."""
    running.recover()
    return running
