"""confluent-kafka: librdkafka as Python has it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

import confluent_kafka as ck
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

LOGICAL = {BEGINNING: ck.OFFSET_BEGINNING, END: ck.OFFSET_END}


class Librdkafka(KafkaClient):
    """Newest versions of every request; a thread of its own."""

    name = "confluent-kafka"

    def write(
        self, address: str, topic: str, messages: Sequence[Message], settings: WriteSettings = WRITE
    ) -> list[Place]:
        producer = ck.Producer(
            {
                "bootstrap.servers": address,
                "acks": settings.acks,
                "compression.type": settings.codec,
                "enable.idempotence": settings.idempotent,
                "message.max.bytes": settings.max_bytes,
                "linger.ms": settings.linger_ms,
            }
        )
        reports: dict[int, Place | ck.KafkaError] = {}
        for number, message in enumerate(messages):
            producer.produce(topic, on_delivery=_report_to(reports, number), **_arguments(message))
        assert producer.flush(30) == 0, "librdkafka did not deliver in time"
        return [_place_or_raise(reports[number]) for number in range(len(messages))]

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
            "isolation.level": "read_committed" if settings.read_committed else "read_uncommitted",
            "max.partition.fetch.bytes": settings.max_partition_bytes,
            "fetch.max.bytes": max(settings.max_bytes, 1_000_000),
            "message.max.bytes": 1_000_000,
            "enable.partition.eof": True,
        }
        with closing(_consumer(address, **limits)) as consumer:
            consumer.assign([ck.TopicPartition(topic, p, LOGICAL.get(o, o)) for p, o in starts.items()])
            found: list[Stored] = []
            patience = Patience(f"reading {count} of {topic}")
            while len(found) < count or when_ready is not None:
                patience.check(len(found))
                message = consumer.poll(1.0)
                if message is None:
                    continue
                error = message.error()
                if error is None:
                    found.append(_stored(message))
                elif error.code() != ck.KafkaError._PARTITION_EOF:
                    raise ck.KafkaException(error)
                elif when_ready is not None:  # at the end of the partition: it knows where it stands
                    when_ready()
                    when_ready = None
            return found

    def watermarks(self, address: str, topic: str, partition: int) -> tuple[int, int]:
        with closing(_consumer(address)) as consumer:
            low, high = consumer.get_watermark_offsets(ck.TopicPartition(topic, partition), timeout=20)
            return low, high

    def offsets_at(self, address: str, topic: str, timestamps: Mapping[int, int]) -> dict[int, int | None]:
        wanted = [ck.TopicPartition(topic, p, t) for p, t in timestamps.items()]
        with closing(_consumer(address)) as consumer:
            found = consumer.offsets_for_times(wanted, timeout=20)
        return {tp.partition: tp.offset if tp.offset >= 0 else None for tp in found}


def _consumer(address: str, **settings: object) -> ck.Consumer:
    # A group id is asked for even where partitions are assigned by hand; nothing is committed.
    fixed = {"bootstrap.servers": address, "group.id": "by-hand", "enable.auto.commit": False}
    return ck.Consumer({**fixed, **settings})


def _arguments(message: Message) -> dict[str, Any]:
    given: dict[str, Any] = {"value": message.value, "key": message.key, "headers": list(message.headers)}
    if message.partition is not None:
        given["partition"] = message.partition
    if message.timestamp_ms is not None:
        given["timestamp"] = message.timestamp_ms
    return given


def _report_to(reports: dict[int, Place | ck.KafkaError], number: int) -> Callable[[Any, ck.Message], None]:
    def report(error: ck.KafkaError | None, message: ck.Message) -> None:
        offset = message.offset()
        reports[number] = error or Place(message.partition(), -1 if offset is None else offset)

    return report


def _place_or_raise(report: Place | ck.KafkaError) -> Place:
    if isinstance(report, Place):
        return report
    raise WriteFailed(report.code(), report.str())


def _stored(message: ck.Message) -> Stored:
    return Stored(
        message.partition(),
        message.offset(),
        message.timestamp()[1],
        message.key(),
        message.value(),
        tuple((name, value) for name, value in message.headers() or ()),
    )
