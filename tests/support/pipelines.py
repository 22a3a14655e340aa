"""What the tests of pipelines share: a pipeline from a few lines, what a topic holds, and a Protobuf message."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, TopicPartition
from tests.support.spark_world import QUERY_TIMEOUT_S, Broker

HEADER = """\
from ottla.spark import delta, iceberg, parquet, pipeline, topic
"""


def write_pipeline(directory: Path, text: str, name: str = "p") -> Path:
    """A pipeline's file, with the imports that all have."""
    path = directory / f"{name}.py"
    path.write_text(HEADER + textwrap.dedent(text))
    return path


def pipeline_of(directory: Path, text: str, name: str = "p") -> Callable[[Any, Broker], list[Any]]:
    """A function that loads the pipeline and runs it over what is there; the queries, ended."""
    path = write_pipeline(directory, text, name)

    def run(spark: Any, broker: Broker) -> list[Any]:
        from ottla.spark.pipeline import load

        queries = load(path).start(spark, broker.bootstrap, directory / "state", available_now=True)
        for query in queries:
            assert query.awaitTermination(QUERY_TIMEOUT_S), f"{query.name} has not ended"
        return queries

    return run


def figures_of(queries: list[Any]) -> dict[str, tuple[int, int]]:
    """Rows of the result and dead letters, as a run counts them, by the names of the queries."""
    from ottla.spark.pipeline.running import Figures

    found = {}
    for query in queries:
        figures = Figures(query.name)
        figures.add(query.recentProgress, 0.0)
        found[query.name] = (figures.rows_out, figures.dead_lettered)
    return found


def consume(broker: Broker, topic: str) -> list[Message]:
    """All committed records of a topic as it is now, in the order of partitions and offsets."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    try:
        return _read_to_the_ends(consumer, topic)
    finally:
        consumer.close()


def _read_to_the_ends(consumer: Consumer, topic: str) -> list[Message]:
    from confluent_kafka import KafkaError

    partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
    consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in partitions])
    left, found = set(partitions), []
    deadline = time.monotonic() + QUERY_TIMEOUT_S
    while left:
        assert time.monotonic() < deadline, f"{topic} was not read to its end"
        message = consumer.poll(0.2)
        if message is None:
            continue
        error = message.error()
        if error is None:
            found.append(message)
        elif error.code() == KafkaError._PARTITION_EOF:
            left.discard(message.partition())
        else:
            raise AssertionError(str(error))
    return sorted(found, key=lambda message: (message.partition(), message.offset()))


def order_descriptors() -> bytes:
    """What protoc makes of a file with a message `shop.Order` that has a field of each kind."""
    from google.protobuf import timestamp_pb2, wrappers_pb2
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field
    from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

    made = FileDescriptorSet()
    for known in (timestamp_pb2, wrappers_pb2):
        known.DESCRIPTOR.CopyToProto(made.file.add())
    file = made.file.add()
    assert isinstance(file, FileDescriptorProto)
    file.name, file.package, file.syntax = "order.proto", "shop", "proto3"
    file.dependency.extend(["google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto"])
    kind = file.enum_type.add(name="Kind")
    for number, name in enumerate(("NEW", "OLD")):
        kind.value.add(name=name, number=number)
    place = file.message_type.add(name="Place")
    place.field.add(name="city", number=1, type=Field.TYPE_STRING, label=Field.LABEL_OPTIONAL)
    order = file.message_type.add(name="Order")
    entry = order.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=Field.TYPE_STRING, label=Field.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=Field.TYPE_INT32, label=Field.LABEL_OPTIONAL)
    simple = {
        "id": Field.TYPE_INT64,
        "who": Field.TYPE_STRING,
        "big": Field.TYPE_UINT64,
        "small": Field.TYPE_UINT32,
        "share": Field.TYPE_DOUBLE,
        "ok": Field.TYPE_BOOL,
        "data": Field.TYPE_BYTES,
    }
    for number, (name, type_) in enumerate(simple.items(), 1):
        order.field.add(name=name, number=number, type=type_, label=Field.LABEL_OPTIONAL)
    messages = {
        "at": ".google.protobuf.Timestamp",
        "note": ".google.protobuf.StringValue",
        "place": ".shop.Place",
    }
    for number, (name, type_name) in enumerate(messages.items(), len(simple) + 1):
        order.field.add(
            name=name, number=number, type=Field.TYPE_MESSAGE, type_name=type_name, label=Field.LABEL_OPTIONAL
        )
    order.field.add(
        name="kind",
        number=number + 1,
        type=Field.TYPE_ENUM,
        type_name=".shop.Kind",
        label=Field.LABEL_OPTIONAL,
    )
    order.field.add(name="tags", number=22, type=Field.TYPE_STRING, label=Field.LABEL_REPEATED)
    order.field.add(
        name="counts",
        number=23,
        type=Field.TYPE_MESSAGE,
        type_name=".shop.Order.CountsEntry",
        label=Field.LABEL_REPEATED,
    )
    return made.SerializeToString()


def order_class() -> Any:
    from ottla.spark.pipeline.values.protobuf import message_class

    return message_class(order_descriptors(), "shop.Order")
