"""What the tests of bad input, full disks and killed brokers share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from tests.interop.ottla_node import OttlaNode
from tests.support.control import ControlClient
from tests.support.raw_client import RawClient

MakeNode = Callable[..., OttlaNode]
# As a user starts it: compiled modules are kept, whatever the tests' own environment says.
ENVIRONMENT = {"PYTHONDONTWRITEBYTECODE": ""}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OttlaNode]:
    """A broker for the tests of a module; whatever they send it, it ends cleanly and printed no traceback."""
    broker = OttlaNode(tmp_path_factory.mktemp("faults") / "data", env=ENVIRONMENT)
    with broker:
        yield broker
    assert broker.exit_code == 0
    assert "Traceback" not in broker.log_text()


@pytest.fixture(scope="module")
def control(node: OttlaNode) -> Iterator[ControlClient]:
    """Somebody else's client, at work all the time."""
    with ControlClient(node) as client:
        yield client


@pytest.fixture
def client(node: OttlaNode) -> Iterator[RawClient]:
    """A connection of the test's own."""
    with RawClient(node) as connected:
        yield connected


@pytest.fixture
def make_node(tmp_path: Path) -> Iterator[MakeNode]:
    """Brokers of the test's own, on directories of its own; none is left running."""
    made: list[OttlaNode] = []

    def make(
        settings: Mapping[str, object] | None = None, data_dir: Path | None = None, **given: object
    ) -> OttlaNode:
        where = data_dir or tmp_path / "data"
        work_dir = tmp_path / f"work-{len(made)}"
        broker = OttlaNode(where, settings, work_dir=work_dir, env=ENVIRONMENT, **given)  # type: ignore[arg-type]
        made.append(broker)
        return broker

    yield make
    for broker in made:
        broker.kill()
        assert "Traceback" not in broker.log_text(), broker.log_text()
