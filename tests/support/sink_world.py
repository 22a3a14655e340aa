"""What the tests of the Spark sink share: rows as Arrow, what read_committed readers see, and a sink without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa
from confluent_kafka import Consumer, TopicPartition
from tests.support.spark_world import wait_for

from ottla.client.inline import InlineClient
from ottla.client.offsets import LATEST
from ottla.model.ids import TopicPartition as Place
from ottla.spark.connection import shared_client
from ottla.spark.sink.cluster import SinkCluster
from ottla.spark.sink.commit import Driver, Step, Steps, Written, abort, commit, union
from ottla.spark.sink.options import SinkOptions, sink_options
from ottla.spark.sink.task import Attempt, TaskReport, write_task

READ_TIMEOUT_S = 60


class Seen(NamedTuple):
    """A record as a reader sees it."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] | None


def read_committed(bootstrap: str, topic: str, **settings: Any) -> list[Seen]:
    """All that a read_committed reader sees of a topic now, from librdkafka."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            **settings,
        }
    )
    try:
        partitions = sorted(consumer.list_topics(topic, READ_TIMEOUT_S).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        return list(_until_the_ends(consumer, len(partitions)))
    finally:
        consumer.close()


def _until_the_ends(consumer: Consumer, partitions: int) -> Iterator[Seen]:
    ended: set[int] = set()
    while len(ended) < partitions:
        message = consumer.poll(READ_TIMEOUT_S)
        assert message is not None, f"{len(ended)} of {partitions} partitions were read to their ends"
        if message.error():
            ended.add(message.partition())
            continue
        yield Seen(message.topic(), message.partition(), message.key(), message.value(), message.headers())


def values(bootstrap: str, topic: str) -> list[str]:
    """The values that readers see, sorted."""
    return sorted((seen.value or b"").decode() for seen in read_committed(bootstrap, topic))


def final_values(bootstrap: str, topic: str) -> list[str]:
    """The same when all transactions have ended: who commits has its answer before every partition has its marker."""
    client = Sink(bootstrap, topic, "reader").client
    wait_for(lambda: is_stable(client, topic), what="the last stable offset")
    return values(bootstrap, topic)


def is_stable(client: InlineClient, topic: str) -> bool:
    """Is nothing open: has the last stable offset come to the end of every partition?"""
    places = {Place(topic, partition): LATEST for partition in client.topic(topic).partitions}
    return client.list_offsets(places) == client.list_offsets(places, read_committed=True)


def rows(texts: Iterable[str], keyed: bool = True) -> list[pa.RecordBatch]:
    """Rows with these values, and with the same for keys, in two record batches."""
    data = [text.encode() for text in texts]
    half = len(data) // 2
    return [_record_batch(part, keyed) for part in (data[:half], data[half:])]


def _record_batch(data: list[bytes], keyed: bool) -> pa.RecordBatch:
    columns = {"value": pa.array(data, pa.binary())}
    return pa.record_batch({"key": columns["value"], **columns} if keyed else columns)


class Stopped(Exception):
    """The driver is made to die here."""


class Sink:
    """The sink as Spark drives it, without Spark: task attempts, and a driver that can be stopped before any step."""

    def __init__(self, bootstrap: str, topic: str, query_id: str, **more: str) -> None:
        settings = {"kafka.bootstrap.servers": bootstrap, "topic": topic, **more}
        self.options: SinkOptions = sink_options(settings)
        self.topic = topic
        self.query_id = query_id
        self.prefix = self.options.prefix or f"test-{query_id}"
        self.driver = Driver()
        self.steps: list[Step] = []

    @property
    def client(self) -> InlineClient:
        return shared_client(self.options.kafka)

    def task(
        self, batch_id: int, slot: int, texts: Iterable[str], number: int = 0, *, looks: bool = True
    ) -> TaskReport:
        """One attempt. `looks`: it looks first whether the batch is decided."""
        attempt = Attempt(self.prefix, self.query_id, batch_id, slot, number, looks)
        return write_task(self.options, attempt, rows(texts))

    def written(self, batch_id: int, reports: Iterable[TaskReport]) -> Written:
        found = list(reports)
        return Written(
            self.query_id,
            batch_id,
            tuple(report.entry for report in found if report.entry is not None),
            union(span for report in found for span in report.spans),
            any(report.skipped for report in found),
        )

    def commit(
        self,
        batch_id: int,
        reports: Iterable[TaskReport],
        die_before: int | None = None,
        *,
        of_stream: bool = False,
    ) -> None:
        """Commit; `die_before` counts the steps that are still done."""
        self.run(commit(self.driver, self.written(batch_id, reports), of_stream=of_stream), die_before)

    def abort(self, batch_id: int, reports: Iterable[TaskReport]) -> None:
        self.run(abort(Driver(), self.written(batch_id, reports)))

    def restart(self) -> None:
        """A new driver process, which knows nothing."""
        self.driver = Driver()

    def run(self, steps: Steps[None], die_before: int | None = None) -> None:
        self.steps = []
        cluster = _Watched(self, die_before)
        cluster.run(steps)


class _Watched(SinkCluster):
    """Notes the steps, and stops before one."""

    def __init__(self, sink: Sink, die_before: int | None) -> None:
        super().__init__(sink.options, sink.prefix, sink.client)
        self._sink = sink
        self._left = die_before

    def perform(self, step: Step) -> Any:
        if self._left == 0:
            raise Stopped
        if self._left is not None:
            self._left -= 1
        self._sink.steps.append(step)
        return super().perform(step)
