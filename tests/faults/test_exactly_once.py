"""Consume, transform, produce: with the broker and the application killed again and again, every input counts once.

A short run; OTTLA_EXACTLY_ONCE_KILLS makes it as long as one likes, and `make interop` has one of a hundred.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.faults.conftest import MakeNode
from tests.support.exactly_once_run import KILL_S, PATIENCE_S, seed, survive

KILLS = int(os.environ.get("OTTLA_EXACTLY_ONCE_KILLS", "6"))


@pytest.mark.timeout(PATIENCE_S + KILLS * KILL_S)
def test_every_input_counts_once(make_node: MakeNode, tmp_path: Path) -> None:
    node = make_node()
    node.start()
    survive(node, tmp_path / "application.log", KILLS, seed())
    assert node.stop() == 0
