"""Consume, transform, produce with a hundred kills: the long run of tests/faults/test_exactly_once.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.interop.ottla_node import OttlaNode
from tests.support.exactly_once_run import KILL_S, PATIENCE_S, seed, survive

pytestmark = pytest.mark.interop

KILLS = 100


@pytest.mark.timeout(PATIENCE_S + KILLS * KILL_S)
def test_every_input_counts_once_over_a_hundred_kills(tmp_path: Path) -> None:
    with OttlaNode(tmp_path / "data") as node:
        survive(node, tmp_path / "application.log", KILLS, seed())
        assert "Traceback" not in node.log_text()
