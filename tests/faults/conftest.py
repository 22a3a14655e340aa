"""What the tests of bad input, full disks and killed brokers share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.interop.ottla_node import OttlaNode


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OttlaNode]:
    """A broker for the tests of a module; whatever they send it, it ends cleanly and printed no traceback."""
    broker = OttlaNode(tmp_path_factory.mktemp("faults") / "data", env={"PYTHONDONTWRITEBYTECODE": ""})
    with broker:
        yield broker
    assert broker.exit_code == 0
    assert "Traceback" not in broker.log_text()
