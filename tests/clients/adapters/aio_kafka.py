"""aiokafka, which speaks the old encodings only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiokafka
from aiokafka.errors import KafkaError
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


class AioKafka(KafkaClient):
    """Every call runs a loop of its own."""

    name = "aiokafka"

    def write(
        self, address: str, topic: str, messages: Sequence[Message], settings: WriteSettings = WRITE
    ) -> list[Place]:
        return asyncio.run(_write(address, topic, messages, settings))

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
        return asyncio.run(_read(address, topic, starts, count, settings, when_ready))

    def watermarks(self, address: str, topic: str, partition: int) -> tuple[int, int]:
        async def ask() -> tuple[int, int]:
            wanted = aiokafka.TopicPartition(topic, partition)
            async with _consumer(address) as consumer:
                low = await consumer.beginning_offsets([wanted])
                high = await consumer.end_offsets([wanted])
                return low[wanted], high[wanted]

        return asyncio.run(ask())

    def offsets_at(self, address: str, topic: str, timestamps: Mapping[int, int]) -> dict[int, int | None]:
        async def ask() -> dict[int, int | None]:
            wanted = {aiokafka.TopicPartition(topic, p): t for p, t in timestamps.items()}
            async with _consumer(address) as consumer:
                found = await consumer.offsets_for_times(wanted)
            return {tp.partition: at.offset if at is not None else None for tp, at in found.items()}

        return asyncio.run(ask())


async def _write(
    address: str, topic: str, messages: Sequence[Message], settings: WriteSettings
) -> list[Place]:
    producer = aiokafka.AIOKafkaProducer(
        bootstrap_servers=address,
        acks="all" if settings.acks == -1 else settings.acks,
        compression_type=None if settings.codec == "none" else settings.codec,
        enable_idempotence=settings.idempotent,
        max_request_size=settings.max_bytes,
        linger_ms=settings.linger_ms,
    )
    await producer.start()
    try:
        sent = [await producer.send(topic, **_arguments(message)) for message in messages]
        return [_place(await future, message) for future, message in zip(sent, messages, strict=True)]
    except KafkaError as error:
        raise WriteFailed(error.errno, repr(error)) from error
    finally:
        await producer.stop()


async def _read(
    address: str,
    topic: str,
    starts: Mapping[int, int],
    count: int,
    settings: ReadSettings,
    when_ready: Callable[[], Any] | None,
) -> list[Stored]:
    limits = {
        "isolation_level": "read_committed" if settings.read_committed else "read_uncommitted",
        "max_partition_fetch_bytes": settings.max_partition_bytes,
        "fetch_max_bytes": settings.max_bytes,
    }
    async with _consumer(address, **limits) as consumer:
        await _start(consumer, topic, starts)
        if when_ready is not None:
            await asyncio.to_thread(when_ready)
        found: list[Stored] = []
        patience = Patience(f"reading {count} of {topic}")
        while len(found) < count:
            patience.check(len(found))
            for records in (await consumer.getmany(timeout_ms=1000)).values():
                found += map(_stored, records)
        return found


@asynccontextmanager
async def _consumer(address: str, **settings: Any) -> AsyncIterator[aiokafka.AIOKafkaConsumer]:
    consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=address, auto_offset_reset="none", **settings)
    await consumer.start()
    try:
        yield consumer
    finally:
        await consumer.stop()


async def _start(consumer: aiokafka.AIOKafkaConsumer, topic: str, starts: Mapping[int, int]) -> None:
    consumer.assign([aiokafka.TopicPartition(topic, partition) for partition in starts])
    for partition, offset in starts.items():
        where = aiokafka.TopicPartition(topic, partition)
        if offset == BEGINNING:
            await consumer.seek_to_beginning(where)
        elif offset == END:
            await consumer.seek_to_end(where)
        else:
            consumer.seek(where, offset)
    for where in consumer.assignment():
        await consumer.position(where)


def _arguments(message: Message) -> dict[str, Any]:
    given = message._asdict()
    given["headers"] = list(message.headers) or None
    return given


def _place(metadata: Any, message: Message) -> Place:
    if metadata is None:  # acks=0
        return Place(message.partition if message.partition is not None else -1, -1)
    return Place(metadata.partition, metadata.offset)


def _stored(record: Any) -> Stored:
    headers = tuple((name, value) for name, value in record.headers)
    return Stored(record.partition, record.offset, record.timestamp, record.key, record.value, headers)
