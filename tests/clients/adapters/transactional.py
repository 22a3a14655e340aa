"""Transactional producers of the three clients, behind one small interface, and a reader of either isolation.

An adapter names a client's own calls and turns "another producer has taken over" into Fenced, nothing more.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Mapping
from typing import Any, ClassVar

import aiokafka
import confluent_kafka as ck
import kafka
from aiokafka.errors import ProducerFenced as AioFenced
from kafka.errors import KafkaError as PythonError
from kafka.structs import OffsetAndMetadata
from kafka.structs import TopicPartition as PythonPartition

PATIENCE_S = 90.0
FENCING_CODES = (
    ck.KafkaError._FENCED,
    ck.KafkaError.INVALID_PRODUCER_EPOCH,
    ck.KafkaError.PRODUCER_FENCED,
)


class Fenced(Exception):
    """Another producer has the transactional id, or the coordinator has shut this one out."""


class Transactional(ABC):
    """A producer with a transactional id; making it initializes it."""

    name: ClassVar[str]

    @abstractmethod
    def begin(self) -> None: ...

    @abstractmethod
    def send(self, topic: str, value: bytes, partition: int = 0) -> None:
        """Hand over a record; it is in the log at the latest when the transaction ends, or after flush."""

    @abstractmethod
    def flush(self) -> None: ...

    @abstractmethod
    def send_offsets(self, group: str, topic: str, offsets: Mapping[int, int]) -> None: ...

    @abstractmethod
    def commit(self) -> None: ...

    @abstractmethod
    def abort(self) -> None: ...

    @abstractmethod
    def close(self) -> None:
        """Let go, whatever state it is in."""


class Librdkafka(Transactional):
    """confluent-kafka: its transactions announce partitions (version 1)."""

    name = "librdkafka"

    def __init__(self, address: str, transactional_id: str, timeout_ms: int = 60_000) -> None:
        settings = {
            "bootstrap.servers": address,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": timeout_ms,
        }
        self._address = address
        self._producer = ck.Producer(settings)
        self._producer.init_transactions(PATIENCE_S)

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, value: bytes, partition: int = 0) -> None:
        self._try(lambda: self._producer.produce(topic, value, partition=partition))

    def flush(self) -> None:
        self._producer.flush(PATIENCE_S)

    def send_offsets(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        consumer = ck.Consumer({"bootstrap.servers": self._address, "group.id": group})
        places = [ck.TopicPartition(topic, partition, offset) for partition, offset in offsets.items()]
        metadata = consumer.consumer_group_metadata()
        self._try(lambda: self._producer.send_offsets_to_transaction(places, metadata, PATIENCE_S))
        consumer.close()

    def commit(self) -> None:
        self._try(lambda: self._producer.commit_transaction(PATIENCE_S))

    def abort(self) -> None:
        self._try(lambda: self._producer.abort_transaction(PATIENCE_S))

    def close(self) -> None:
        self._producer.purge()

    def _try(self, call: Any) -> None:
        try:
            call()
        except ck.KafkaException as error:
            if error.args[0].code() in FENCING_CODES:
                raise Fenced from error
            raise


class KafkaPython(Transactional):
    """kafka-python."""

    name = "kafka-python"

    def __init__(self, address: str, transactional_id: str, timeout_ms: int = 60_000) -> None:
        self._producer = kafka.KafkaProducer(
            bootstrap_servers=address,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
        )
        self._producer.init_transactions()

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, value: bytes, partition: int = 0) -> None:
        self._try(lambda: self._producer.send(topic, value, partition=partition))

    def flush(self) -> None:
        self._producer.flush(PATIENCE_S)

    def send_offsets(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        places = {
            PythonPartition(topic, partition): OffsetAndMetadata(offset, "", -1)
            for partition, offset in offsets.items()
        }
        self._try(lambda: self._producer.send_offsets_to_transaction(places, group))

    def commit(self) -> None:
        self._try(self._producer.commit_transaction)

    def abort(self) -> None:
        self._try(self._producer.abort_transaction)

    def close(self) -> None:
        self._producer.close(timeout=2)

    def _try(self, call: Any) -> None:
        try:
            call()
        except PythonError as error:
            if "Fenced" in f"{type(error).__name__} {error}" or "Epoch" in f"{type(error).__name__} {error}":
                raise Fenced from error
            raise


class AioKafka(Transactional):
    """aiokafka, which speaks the oldest versions of the transactional requests."""

    name = "aiokafka"

    def __init__(self, address: str, transactional_id: str, timeout_ms: int = 60_000) -> None:
        self._loop = asyncio.new_event_loop()
        self._producer = self._run(self._start(address, transactional_id, timeout_ms))

    async def _start(self, address: str, transactional_id: str, timeout_ms: int) -> aiokafka.AIOKafkaProducer:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=address,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
        )
        await producer.start()
        return producer

    def begin(self) -> None:
        self._run(self._producer.begin_transaction())

    def send(self, topic: str, value: bytes, partition: int = 0) -> None:
        self._run(self._producer.send(topic, value, partition=partition))

    def flush(self) -> None:
        self._run(self._producer.flush())

    def send_offsets(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        places = {aiokafka.TopicPartition(topic, partition): offset for partition, offset in offsets.items()}
        self._run(self._producer.send_offsets_to_transaction(places, group))

    def commit(self) -> None:
        self._run(self._producer.commit_transaction())

    def abort(self) -> None:
        self._run(self._producer.abort_transaction())

    def close(self) -> None:
        if not self._loop.is_closed():
            self._loop.run_until_complete(self._stop())
            self._loop.close()

    async def _stop(self) -> None:
        with contextlib.suppress(Exception):  # a producer that was fenced says so once more
            await self._producer.stop()

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        try:
            return self._loop.run_until_complete(asyncio.wait_for(work, PATIENCE_S))
        except AioFenced as error:
            raise Fenced from error


PRODUCERS: tuple[type[Transactional], ...] = (Librdkafka, KafkaPython, AioKafka)


def read(address: str, topic: str, partitions: int = 1, *, committed: bool = True) -> list[bytes]:
    """Everything that a reader of this isolation sees now, partition by partition."""
    consumer = ck.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
        }
    )
    found: dict[int, list[bytes]] = {partition: [] for partition in range(partitions)}
    consumer.assign([ck.TopicPartition(topic, partition, 0) for partition in range(partitions)])
    left = set(range(partitions))
    while left:
        message = consumer.poll(PATIENCE_S)
        assert message is not None, f"{topic} has no end"
        error = message.error()
        if error is None:
            found[message.partition()].append(message.value())
        elif error.code() == ck.KafkaError._PARTITION_EOF:
            left.discard(message.partition())
        else:
            raise ck.KafkaException(error)
    consumer.close()
    return [value for partition in range(partitions) for value in found[partition]]


def committed_offset(address: str, group: str, topic: str, partition: int = 0) -> int | None:
    """The group's stable offset, None if it has none."""
    consumer = ck.Consumer({"bootstrap.servers": address, "group.id": group})
    (found,) = consumer.committed([ck.TopicPartition(topic, partition)], PATIENCE_S)
    consumer.close()
    return None if found.offset < 0 else int(found.offset)
