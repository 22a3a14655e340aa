"""The producer of records without I/O: `try_append` puts a record into a batch, the Sender does the rest.

Knows topics, partitioners and where a producer's identity comes from; owned by one driver (producer/aio.py).
"""

from random import Random
from typing import Any

from ottla.client.config import ProducerConfig
from ottla.client.errors import Closed, RecordTooLarge
from ottla.client.lookups import KnownPlaces
from ottla.client.metadata import TopicInfo
from ottla.client.network import NetworkCore
from ottla.client.producer.accumulator import (
    Delivery,
    NewRecord,
    ProducerBatch,
    RecordAccumulator,
    record_size,
)
from ottla.client.producer.identity import OnGap, ProducerIdentity
from ottla.client.producer.partitioner import CustomPartitioner, Partitioner, make_partitioner
from ottla.client.producer.sender import Sender, SendSettings
from ottla.client.transaction.manager import TransactionManager
from ottla.client.transaction.messages import init_producer_id
from ottla.model.errors import ErrorCode, KafkaError, error_of
from ottla.model.ids import TopicPartition
from ottla.records.batch import HEADER_SIZE
from ottla.records.compression import CODECS


class ProducerCore:
    """Everything of a producer but its driver: accumulator, sender and, for a transactional one, its transactions."""

    def __init__(
        self,
        network: NetworkCore,
        config: ProducerConfig,
        *,
        delivery_type: type[Delivery] = Delivery,
        partitioner: CustomPartitioner | None = None,
    ) -> None:
        if config.compression_type not in CODECS:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
                f"compression_type {config.compression_type!r} is not one of {', '.join(CODECS)}",
            )
        self._network = network
        self._metadata = network.metadata
        self._config = config
        self._largest_record = min(config.max_request_size, config.buffer_memory) - HEADER_SIZE
        self.accumulator = RecordAccumulator(
            batch_size=config.batch_size,
            linger_ms=config.linger_ms,
            buffer_memory=config.buffer_memory,
            delivery_type=delivery_type,
        )
        self._partitioner = self._make_partitioner(partitioner, network.random)
        self._id_requested = False
        is_transactional = config.transactional_id is not None
        on_gap = OnGap.END_TRANSACTION if is_transactional else OnGap.RAISE_EPOCH
        self.sender = Sender(
            network,
            self.accumulator,
            _send_settings(config),
            places=KnownPlaces(network),
            identity=ProducerIdentity(on_gap) if config.idempotent else None,
            # The id of a transactional producer comes with init_transactions.
            request_identity=None if is_transactional else self._request_id,
            on_done=self._on_done if is_transactional else None,
        )
        self.transactions = TransactionManager(network, config, self.sender) if is_transactional else None
        self.sender.membership = self.transactions

    def _make_partitioner(self, custom: CustomPartitioner | None, random: Random) -> Partitioner:
        config = self._config
        adaptive = config.partitioner_adaptive_partitioning_enable
        return make_partitioner(
            config.partitioner if custom is None else custom,
            config.batch_size,
            random,
            ignore_keys=config.partitioner_ignore_keys,
            queue_sizes=self.accumulator.queue_sizes if adaptive else None,
        )

    # -- appending ------------------------------------------------------------------------------------

    def topic(self, name: str, now: float) -> TopicInfo | None:
        """What is known of a topic; None says that it was asked for and the caller waits. Raises if hopeless."""
        self._metadata.want(name, now)
        info = self._metadata.topic(name)
        if info is not None and info.error is not None and not info.error.retriable:
            raise KafkaError(info.error, f"topic {name!r}: {info.error.name}")
        return info if info is not None and info.partitions else None

    def try_append(
        self, name: str, partition: int | None, record: NewRecord, now: float
    ) -> tuple[Delivery | None, bool]:
        """Queue a record if the topic is known and there is room; if not (None) the caller waits and comes again.

        The flag says that the driver should give us a turn. Every record passes here: the usual case is short.
        """
        size = record_size(record)
        if size > self._largest_record or self.sender.fatal is not None:
            raise self._refusal(size)
        if self.transactions is not None:
            self.transactions.check_open()
        topic = self._metadata.topics.get(name)
        if topic is None or topic.error is not None or not topic.partitions:
            topic = self.topic(name, now)
            if topic is None:
                return None, True
        accumulator = self.accumulator
        if not accumulator.has_room(size):
            accumulator.blocked = True
            return None, True
        tp = self._choose(topic, record[1], size) if partition is None else _partition_of(topic, partition)
        delivery, is_news = accumulator.append(tp, record, size, now)
        if is_news:
            self._metadata.want(name, now)  # in use, so not to be forgotten
            if self.transactions is not None:
                self.transactions.uses(tp)
        return delivery, is_news

    def _refusal(self, size_bytes: int) -> KafkaError:
        """Why a record can never be sent."""
        return self.sender.fatal or RecordTooLarge(
            f"a record of {size_bytes} bytes is larger than max_request_size ({self._config.max_request_size}) "
            f"or buffer_memory ({self._config.buffer_memory}) allows"
        )

    def _choose(self, topic: TopicInfo, key: bytes | None, size: int) -> TopicPartition:
        """The partition for a record whose sender named none."""
        partitioner, name = self._partitioner, topic.name
        tp = _partition_of(topic, partitioner.choose(name, key, topic.shape, size))
        if not self.accumulator.fits_open_batch(tp, size) and partitioner.batch_full(name, key, tp.partition):
            tp = _partition_of(topic, partitioner.choose(name, key, topic.shape, size))
        return tp

    def abort(self, error: KafkaError) -> None:
        """Fail everything that waits: the producer closes without having sent it."""
        self.sender.abort(error)

    def _on_done(self, batch: ProducerBatch) -> None:
        if batch.error is not None and self.transactions is not None:
            self.transactions.batch_failed(batch.error, numbered=batch.has_sequence)

    def _request_id(self, now: float) -> None:
        """Ask for a producer id, once there is something to send."""
        identity = self.sender.identity
        if self._id_requested or identity is None or not self.accumulator.queues:
            return
        self._id_requested = True

        def answered(response: Any, error: KafkaError | None, now: float) -> None:
            self._id_requested = False
            code = error_of(response.error_code) if response is not None else None
            if code is not None:
                error = KafkaError(code, f"no producer id: {code.name}")
            if error is None:
                identity.assigned(response.producer_id, response.producer_epoch)
            elif not error.code.retriable and not isinstance(error, Closed):
                self.sender.fail(error)

        deadline = now + self._config.delivery_timeout_ms
        self._network.call(init_producer_id(None).call(deadline, answered), now)


def _send_settings(config: ProducerConfig) -> SendSettings:
    return SendSettings(
        max_request_bytes=config.max_request_size,
        request_timeout_ms=config.request_timeout_ms,
        delivery_timeout_ms=config.delivery_timeout_ms,
        acks=config.required_acks,
        retries=config.retries,
        in_order=config.max_in_flight_requests_per_connection == 1,
        batch_size=config.batch_size,
        codec=CODECS[config.compression_type],
        compression_level=config.compression_level,
        transactional_id=config.transactional_id,
    )


def _partition_of(topic: TopicInfo, partition: int) -> TopicPartition:
    if 0 <= partition < len(topic.topic_partitions):
        return topic.topic_partitions[partition]
    raise KafkaError(
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        f"topic {topic.name!r} has partitions 0 to {len(topic.topic_partitions) - 1}, not {partition}",
    )
