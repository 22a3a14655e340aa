"""One standalone cluster for all tests on one: two workers, each with a core and a bare Python; one state directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.standalone import Standalone


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("standalone")) as made:
        yield made


@pytest.fixture(scope="session")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """So that an environment is packed once. Tests bring their own checkpoints."""
    return tmp_path_factory.mktemp("state")
