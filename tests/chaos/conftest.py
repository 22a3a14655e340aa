"""What the tests of a replicated cluster share: the clusters, each healed between two tests."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator

import pytest
from tests.support.replicated import Replicated

_numbers = itertools.count(1)
TAIL_CHARS = 6_000


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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What the nodes have printed, and what they believe, is a part of every failure."""
    report = yield
    used = getattr(item, "funcargs", {})
    if report.failed and isinstance(cluster := used.get("cluster"), Replicated):
        if "topic" in used:
            views = {node.node_id: cluster.view(node.node_id, used["topic"]) for node in cluster.serving()}
            report.sections.append((used["topic"], "\n".join(f"{n}: {view}" for n, view in views.items())))
        for node in cluster.nodes.values():
            report.sections.append((f"{node.kind}, start {node.starts}", node.log_text()[-TAIL_CHARS:]))
    return report
