"""kafka-python."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

import kafka
from kafka.errors import KafkaError
from tests.clients.adapters.model import (
    BEGINNING,
    END,
    READ,
    WRITE,
    KafkaClient,
    Message,
    Patience,
    Place,
    ReadSettings,
    Stored,
    WriteFailed,
    WriteSettings,
)


class KafkaPython(KafkaClient):
    """Pure Python."""

    name = "kafka-python"

    def write(
        self, address: str, topic: str, messages: Sequence[Message], settings: WriteSettings = WRITE
    ) -> list[Place]:
        producer = kafka.KafkaProducer(
            bootstrap_servers=address,
            acks="all" if settings.acks == -1 else settings.acks,
            compression_type=None if settings.codec == "none" else settings.codec,
            enable_idempotence=settings.idempotent,
            max_request_size=settings.max_bytes,
            linger_ms=settings.linger_ms,
        )
        with closing(producer):
            sent = [producer.send(topic, **_arguments(message)) for message in messages]
            producer.flush(30)
            return [_place(future) for future in sent]

    def read(
        self,
        address: str,
        topic: str,
        starts: Mapping[int, int],
        count: int,
        settings: ReadSettings = READ,
        *,
        when_ready: Callable[[], Any] | None = None,
    ) -> list[Stored]:
        limits = {
            "isolation_level": "read_committed" if settings.read_committed else "read_uncommitted",
            "max_partition_fetch_bytes": settings.max_partition_bytes,
            "fetch_max_bytes": settings.max_bytes,
        }
        with closing(_consumer(address, **limits)) as consumer:
            _start(consumer, topic, starts)
            if when_ready is not None:
                when_ready()
            found: list[Stored] = []
            patience = Patience(f"reading {count} of {topic}")
            while len(found) < count:
                patience.check(len(found))
                for records in consumer.poll(1000).values():
                    found += map(_stored, records)
            return found

    def watermarks(self, address: str, topic: str, partition: int) -> tuple[int, int]:
        wanted = kafka.TopicPartition(topic, partition)
        with closing(_consumer(address)) as consumer:
            return consumer.beginning_offsets([wanted])[wanted], consumer.end_offsets([wanted])[wanted]

    def offsets_at(self, address: str, topic: str, timestamps: Mapping[int, int]) -> dict[int, int | None]:
        with closing(_consumer(address)) as consumer:
            found = consumer.offsets_for_times(
                {kafka.TopicPartition(topic, p): t for p, t in timestamps.items()}
            )
        return {tp.partition: at.offset if at is not None else None for tp, at in found.items()}


def _consumer(address: str, **settings: object) -> kafka.KafkaConsumer:
    return kafka.KafkaConsumer(
        bootstrap_servers=address,
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="none",
        **settings,
    )


def _start(consumer: kafka.KafkaConsumer, topic: str, starts: Mapping[int, int]) -> None:
    consumer.assign([kafka.TopicPartition(topic, partition) for partition in starts])
    for partition, offset in starts.items():
        where = kafka.TopicPartition(topic, partition)
        if offset == BEGINNING:
            consumer.seek_to_beginning(where)
        elif offset == END:
            consumer.seek_to_end(where)
        else:
            consumer.seek(where, offset)
    for where in consumer.assignment():
        consumer.position(where)


def _arguments(message: Message) -> dict[str, Any]:
    given = message._asdict()
    given["headers"] = list(message.headers)
    return given


def _place(future: Any) -> Place:
    try:
        metadata = future.get(timeout=30)
    except KafkaError as error:
        raise WriteFailed(getattr(error, "errno", -1), repr(error)) from error
    return Place(metadata.partition, metadata.offset)


def _stored(record: Any) -> Stored:
    headers = tuple((name, value) for name, value in record.headers)
    return Stored(record.partition, record.offset, record.timestamp, record.key, record.value, headers)
