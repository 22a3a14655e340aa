"""Spark Connect: somebody dies in the middle of a micro-batch, and each row is there once in the end.

Executors, Python workers and workers are Spark's to replace. The client that runs the pipeline may die: its queries go
on without it, until the next run takes their checkpoints. The server may die, and with it all that runs: when it comes
again, the run goes on there.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.connect_server import ConnectServer
from tests.support.shipped import shipped
from tests.support.six import prepare
from tests.support.spark_world import Broker
from tests.support.standalone import Standalone
from tests.support.stricken import Stricken, die_and_check

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("spark"), pytest.mark.timeout(3600)]

VICTIMS = ("python worker", "executor", "worker", "client", "server")


@pytest.mark.parametrize("name", ["clickstream"])
def test_each_row_once_whoever_dies(
    name: str,
    cluster: Standalone,
    connect_server: ConnectServer,
    own_broker: Broker,
    state: Path,
    tmp_path: Path,
) -> None:
    """Windows and sessions are kept between micro-batches, and one of its streams is written by foreachBatch."""
    # In one partition, so that no micro-batch has read one partition further than another: the watermark goes by the
    # newest row, and what is behind it is left out.
    own_broker.topic(1, "clicks")
    prepare(name, own_broker)
    stricken = Stricken(shipped(name), cluster, own_broker, state, tmp_path, connect_server)
    die_and_check(stricken, VICTIMS)
