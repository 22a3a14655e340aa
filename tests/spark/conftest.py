"""One Spark and one broker for all the tests on a real Spark: `broker`, `own_broker`, `spark`, `queries`.

Every module here says `pytestmark = pytest.mark.xdist_group("spark")`, so that a parallel test run starts one
session. Tests share the broker and keep to topics of their own; one that kills, stops or fills a broker takes
`own_broker`, which keeps its port over restarts.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.interop.process import free_ports
from tests.support.spark_world import Broker

# The first test of a run waits for Java to start, too, and a signal in the middle of a call to Java spoils all later
# ones: what hangs is found by the waits in the tests, which are shorter.
TIMEOUT_S = 900


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """The broker that the tests share."""
    with Broker(tmp_path_factory.mktemp("spark") / "data") as node:
        yield node
    assert "Traceback" not in node.log_text()


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker for one test, to be killed, restarted or filled; its port stays the same."""
    with Broker(tmp_path / "data", port=free_ports(1)[0]) as node:
        yield node


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The session: two cores, tasks tried four times as on a cluster, and what ottla.spark.session sets."""
    from ottla.spark.session import SHORT_LIVED, session

    place = tmp_path_factory.mktemp("spark-session")
    events = place / "events"
    events.mkdir()
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.extraJavaOptions": SHORT_LIVED,
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(place / "warehouse"),
        "spark.local.dir": str(place / "local"),
        # What Spark keeps of every plan and job, as text: no secret may be in it.
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
    }
    made = session("tests", master="local[2,4]", conf=settings, log_file=place / "spark.log")
    yield made
    made.stop()


@pytest.fixture
def queries(spark: Any) -> Iterator[None]:
    """Stops what streaming queries the test left running."""
    yield
    for query in spark.streams.active:
        query.stop()
