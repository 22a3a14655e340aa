"""Consume, transform, produce with a hundred kills: the long run of tests/faults/test_exactly_once.py.

And what transactional producers are told after a kill, by Apache and by Ottla.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.interop.apache import ApacheKafka
from tests.interop.ottla_node import OttlaNode
from tests.interop.process import ServerProcess, free_ports
from tests.support.exactly_once_run import KILL_S, PATIENCE_S, seed, survive
from tests.support.transaction_kills import AFTER_A_KILL, told_after_a_kill

pytestmark = pytest.mark.interop

KILLS = 100


@pytest.mark.timeout(PATIENCE_S + KILLS * KILL_S)
def test_every_input_counts_once_over_a_hundred_kills(tmp_path: Path) -> None:
    with OttlaNode(tmp_path / "data") as node:
        survive(node, tmp_path / "application.log", KILLS, seed())
        assert "Traceback" not in node.log_text()


@pytest.mark.parametrize("kind", [ApacheKafka, OttlaNode])
def test_what_producers_are_told_after_a_kill(tmp_path: Path, kind: type[ApacheKafka | OttlaNode]) -> None:
    settings = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 100}
    node: ServerProcess = kind(tmp_path / "data", settings, port=free_ports(1)[0])
    with node:
        assert told_after_a_kill(node) == AFTER_A_KILL
