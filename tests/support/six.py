"""What the tests of the pipelines that ship share: samples into topics, runs, results back as rows."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple

from confluent_kafka import Producer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from tests.support.pipelines import consume
from tests.support.spark_world import ADMIN_TIMEOUT_S, QUERY_TIMEOUT_S, Broker

from ottla.spark.pipeline import Pipeline, load
from ottla.spark.pipeline.topics import create_topics


class Record(NamedTuple):
    """A record to produce, and where to."""

    topic: str
    key: bytes | None
    value: bytes | None
    timestamp_ms: int


def prepare(name: str, broker: Broker) -> Pipeline:
    """A pipeline that ships, with its topics, as `ottla pipeline run` makes them; samples are old, and stay."""
    pipeline = load(f"ottla.examples.{name}")
    create_topics(pipeline, broker.bootstrap)
    admin = broker.admin()
    for topic in pipeline.topics():
        kept = ConfigEntry("retention.ms", "-1", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[kept])
        admin.incremental_alter_configs([resource])[resource].result(ADMIN_TIMEOUT_S)
    return pipeline


def only(pipeline: Pipeline, *names: str) -> Pipeline:
    """These streams of a pipeline, without their queries for dead letters, where a test is about nothing else."""
    chosen = [replace(stream, dead_letter=None) for stream in pipeline.streams if stream.name in names]
    return replace(pipeline, streams=tuple(chosen))


def produce(broker: Broker, records: Iterable[Record]) -> None:
    """In this order, each with its own timestamp; a key's records go to one partition, as Java's client has it."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "partitioner": "murmur2_random"})
    for record in records:
        producer.produce(record.topic, record.value, record.key, timestamp=record.timestamp_ms)
        producer.poll(0)
    assert producer.flush(ADMIN_TIMEOUT_S) == 0


def end(queries: list[Any]) -> list[Any]:
    """Wait for what was started with available_now."""
    for query in queries:
        assert query.awaitTermination(QUERY_TIMEOUT_S), f"{query.name} has not ended"
    return queries


def results(broker: Broker, topic: str) -> list[dict[str, Any]]:
    """Committed rows, in the order of partitions and offsets."""
    return [json.loads(message.value()) for message in consume(broker, topic)]


def latest(rows: Iterable[dict[str, Any]], *key: str) -> list[dict[str, Any]]:
    """Of the rows with one key the last: what an update stream means."""
    return list({tuple(row[name] for name in key): row for row in rows}.values())


def millis(text: str) -> int:
    """An ISO timestamp as milliseconds."""
    return round(datetime.fromisoformat(text).timestamp() * 1000)
