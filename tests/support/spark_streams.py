"""Streaming queries under test: their options, their rows and what the broker's group commands say of them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.interop.ottla_node import OTTLA
from tests.support.spark_world import Broker, wait_for


class Stream:
    """One query whose rows come here, with a checkpoint that outlives it. `hold` is called in every micro-batch."""

    def __init__(self, spark: Any, broker: Broker, checkpoint: Path, **options: Any) -> None:
        self._spark = spark
        self._broker = broker
        self._checkpoint = checkpoint
        self.options = options
        self.query: Any = None
        self.hold: Callable[[int], None] = lambda batch_id: None
        # By batch: one that is done again after a failure is the same batch.
        self._rows: dict[int, list[Any]] = {}

    def start(self, **trigger: Any) -> Stream:
        """Begin, or go on from the checkpoint. Without a trigger: as soon as there is something."""
        options = {"kafka.bootstrap.servers": self._broker.bootstrap}
        options |= {name.replace("__", "."): value for name, value in self.options.items()}
        source = self._spark.readStream.format("ottla").options(**options).load()
        columns = source.selectExpr("topic", "partition", "offset", "cast(value as string) as value")
        writer = columns.writeStream.foreachBatch(self._take).option(
            "checkpointLocation", str(self._checkpoint)
        )
        self.query = writer.trigger(**trigger).start() if trigger else writer.start()
        return self

    def _take(self, frame: Any, batch_id: int) -> None:
        self.hold(batch_id)
        self._rows[batch_id] = frame.collect()

    def run(self) -> list[str]:
        """All that is there now (Trigger.AvailableNow): the values, in no order."""
        self.start(availableNow=True).query.awaitTermination()
        return self.values()

    def stop(self) -> None:
        self.query.stop()

    def rows(self) -> list[Any]:
        """What this run and those before have read."""
        return [row for batch_id in sorted(self._rows) for row in self._rows[batch_id]]

    def values(self) -> list[str]:
        return [row.value for row in self.rows()]

    def batches(self) -> list[int]:
        """Rows of each micro-batch that had any."""
        return [p["numInputRows"] for p in self.query.recentProgress if p["numInputRows"]]

    def wait_for_values(self, expected: list[str]) -> None:
        """Until exactly these are there; the query's error at once if it fails."""
        wait_for(lambda: len(self.values()) >= len(expected), self.query, f"{len(expected)} rows")
        assert sorted(self.values()) == sorted(expected)

    def error(self) -> str:
        """Wait for the query to fail; what it says."""
        wait_for(lambda: self.query.exception() is not None, what="an error")
        return str(self.query.exception())


MakeStream = Callable[..., Stream]


def group_lag(broker: Broker, group: str) -> list[dict[str, Any]]:
    """`ottla group lag`, as JSON: one row a partition; none if there is no such group (yet)."""
    done = subprocess.run(
        [str(OTTLA), "group", "lag", group, "--partitions", "-b", broker.bootstrap, "-o", "json"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    if "GROUP_ID_NOT_FOUND" in done.stderr:
        return []
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found
