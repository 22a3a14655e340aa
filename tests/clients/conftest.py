"""One broker for all the client tests of a worker: started as a user starts it, on a port that it chooses.

The tests share the broker and keep to topics of their own, so they disturb one another neither in order nor in
number.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.interop.ottla_node import OttlaNode


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OttlaNode]:
    """The broker; whatever its clients did, it ends cleanly and has printed no traceback."""
    broker = OttlaNode(tmp_path_factory.mktemp("clients") / "data", env={"PYTHONDONTWRITEBYTECODE": ""})
    with broker:
        yield broker
    assert broker.exit_code == 0
    assert "Traceback" not in broker.log_text()
