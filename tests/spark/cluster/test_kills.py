"""Somebody dies in the middle of a micro-batch on the cluster, again and again: each row is there once in the end.

What comes out is what plain Python makes of the records in one go.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.shipped import shipped
from tests.support.six import prepare
from tests.support.spark_world import Broker
from tests.support.standalone import Standalone
from tests.support.stricken import Stricken, die_and_check

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("spark"), pytest.mark.timeout(3600)]

ALL = ("python worker", "executor", "worker", "master", "driver")


@pytest.mark.parametrize(
    ("name", "victims"),
    [
        ("etl", ALL),
        # These keep windows, sessions and rows between micro-batches.
        ("clickstream", ("executor", "driver")),
        ("cdc", ("executor", "driver")),
    ],
)
def test_each_row_once_whoever_dies(
    name: str,
    victims: tuple[str, ...],
    cluster: Standalone,
    own_broker: Broker,
    state: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LAKE", str(tmp_path / "lake"))
    if name == "clickstream":
        # In one partition, so that no micro-batch has read one partition further than another: the watermark goes by
        # the newest row, and what is behind it is left out.
        own_broker.topic(1, "clicks")
    prepare(name, own_broker)
    die_and_check(Stricken(shipped(name), cluster, own_broker, state, tmp_path), victims)
