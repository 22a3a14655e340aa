"""docs/spark-migration.md: what its table says of each option is what the source and the sink do with it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ottla.spark.connection import SINK_NAMES, SOURCE_NAMES, SOURCE_NO_MEANING, OptionError
from ottla.spark.sink.options import sink_options
from ottla.spark.source.options import source_options

PAGE = (Path(__file__).parents[3] / "docs" / "spark-migration.md").read_text()
BASE = {"kafka.bootstrap.servers": "127.0.0.1:9092"}
# What each option may be, where "1" cannot be meant.
VALUES = {
    "subscribePattern": "a.*",
    "assign": '{"a":[0]}',
    "startingOffsets": "earliest",
    "endingOffsets": "latest",
    "startingOffsetsByTimestamp": '{"a":{"0":1}}',
    "endingOffsetsByTimestamp": '{"a":{"0":1}}',
    "startingOffsetsByTimestampStrategy": "latest",
    "failOnDataLoss": "false",
    "includeHeaders": "true",
    "maxTriggerDelay": "1m",
    "kafka.bootstrap.servers": "127.0.0.1:9092",
    "kafka.isolation.level": "read_uncommitted",
    "kafka.security.protocol": "PLAINTEXT",
    "kafka.acks": "all",
    "kafka.enable.idempotence": "true",
    "kafka.compression.type": "zstd",
    "kafka.transactional.id": "mine",
    "kafka.transaction.timeout.ms": "60000",
    "kafka.batch.size": "100000",
    "kafka.max.request.size": "2000000",
    "kafka.delivery.timeout.ms": "240000",
    "kafka.request.timeout.ms": "20000",
    "kafka.default.api.timeout.ms": "30000",
}
# Spark's guide has these: https://spark.apache.org/docs/latest/streaming/structured-streaming-kafka-integration.html
OF_SPARK = """
    assign subscribe subscribePattern kafka.bootstrap.servers startingTimestamp startingOffsetsByTimestamp
    startingOffsets endingTimestamp endingOffsetsByTimestamp endingOffsets failOnDataLoss kafkaConsumer.pollTimeoutMs
    fetchOffset.numRetries fetchOffset.retryIntervalMs maxOffsetsPerTrigger minOffsetsPerTrigger maxTriggerDelay
    minPartitions maxRecordsPerPartition groupIdPrefix kafka.group.id includeHeaders startingOffsetsByTimestampStrategy
    topic kafka.auto.offset.reset kafka.enable.auto.commit kafka.key.deserializer kafka.value.deserializer
    kafka.key.serializer kafka.value.serializer kafka.interceptor.classes
"""
VERDICTS = ("same", "differs", "no effect", "refused", "refused in reads", "refused in writes")


def rows() -> dict[str, str]:
    """Each option of the table, and what is said of it."""
    table = PAGE.split("## Options\n", 1)[1].split("\n## ", 1)[0]
    found = {}
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        for name in re.findall(r"`([^`]+)`", cells[0]) if line.startswith("| `") else []:
            assert name not in found, name
            found[name] = cells[1]
    return found


def outcome(parse: Callable[[dict[str, str]], Any], name: str, base: dict[str, str]) -> str:
    try:
        made = parse({**base, name.lower(): VALUES.get(name, "1")})
    except OptionError as error:
        return "refused" if "is not supported" in str(error) else f"error: {error}"
    return "no effect" if name.lower() in map(str.lower, made.no_effect) else "taken"


def of_read(name: str) -> str:
    read = {} if name in ("subscribe", "subscribePattern", "assign") else {"subscribe": "a"}
    return outcome(source_options, name, BASE | read)


def of_write(name: str) -> str:
    return outcome(sink_options, name, BASE | ({} if name == "topic" else {"topic": "a"}))


@pytest.mark.parametrize(("name", "said"), rows().items())
def test_an_option_is_treated_as_the_page_says(name: str, said: str) -> None:
    assert said in VERDICTS
    read, write = of_read(name), of_write(name)
    if said in ("same", "differs"):
        assert "taken" in (read, write), (read, write)
        assert not {"refused"} & {read, write}
        if name in SOURCE_NAMES or name in SINK_NAMES:
            assert (read, write) == ("taken", "taken"), "each passes over what only the other has"
    elif said == "no effect":
        assert "no effect" in (read, write), (read, write)
        assert "refused" not in (read, write)
    else:
        assert (read == "refused", write == "refused") == (
            said != "refused in writes",
            said != "refused in reads",
        )


def test_the_page_has_every_option() -> None:
    ours = {name for name in (*SOURCE_NAMES, *SINK_NAMES) if not name.startswith("ottla.")}
    named = set(rows())
    assert set(OF_SPARK.split()) <= named
    assert ours <= named
    assert set(SOURCE_NO_MEANING) - {"partition.metadata.cache.ttl.ms"} <= named
    beyond = {name for name in (*SOURCE_NAMES, *SINK_NAMES) if name.startswith("ottla.")}
    assert all(f"`{name}`" in PAGE for name in beyond)


def test_differences_come_first() -> None:
    assert PAGE.split("\n## ")[1].startswith("Every difference")
