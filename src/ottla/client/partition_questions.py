"""Questions the admin client asks the leaders of partitions (see ottla.client.fanout)."""

from collections.abc import Iterable, Mapping
from typing import Any

from ottla.client.admin_group_types import OpenTransaction
from ottla.client.admin_types import ActiveProducer
from ottla.client.fanout import Question
from ottla.client.offsets import by_topic
from ottla.model.ids import TopicPartition
from ottla.wire.messages.producers import DescribeProducersRequest
from ottla.wire.messages.producers import TopicRequest as ProducersTopic
from ottla.wire.messages.topics import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from ottla.wire.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)


def delete_records_question(before: Mapping[TopicPartition, int], timeout_ms: int) -> Question:
    """Forget what lies below offsets; results are the new beginnings."""

    def build(partitions: list[TopicPartition]) -> DeleteRecordsRequest:
        return DeleteRecordsRequest(
            topics=[
                DeleteRecordsTopic(
                    name=topic,
                    partitions=[
                        DeleteRecordsPartition(partition_index=p, offset=before[TopicPartition(topic, p)])
                        for p in numbers
                    ],
                )
                for topic, numbers in by_topic(partitions)
            ],
            timeout_ms=timeout_ms,
        )

    def parse(response: Any) -> Iterable[tuple[TopicPartition, int, Any]]:
        for topic in response.topics:
            for p in topic.partitions:
                yield TopicPartition(topic.name, p.partition_index), p.error_code, p.low_watermark

    return Question(DeleteRecordsRequest, build, parse)


def producers_question() -> Question:
    """Which producers the leaders remember (KIP-664); results are lists of ActiveProducer."""

    def build(wanted: list[TopicPartition]) -> DescribeProducersRequest:
        topics = [
            ProducersTopic(name=topic, partition_indexes=numbers) for topic, numbers in by_topic(wanted)
        ]
        return DescribeProducersRequest(topics=topics)

    def parse(response: Any) -> Iterable[tuple[TopicPartition, int, Any]]:
        for topic in response.topics:
            for p in topic.partitions:
                producers = [
                    ActiveProducer(*(getattr(s, f) for f in ActiveProducer._fields))
                    for s in p.active_producers
                ]
                yield TopicPartition(topic.name, p.partition_index), p.error_code, producers

    return Question(DescribeProducersRequest, build, parse)


def abort_question(transaction: OpenTransaction) -> Question:
    """Write the abort marker of a transaction."""

    def build(partitions: list[TopicPartition]) -> WriteTxnMarkersRequest:
        marker = WritableTxnMarker(
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            transaction_result=False,
            topics=[
                WritableTxnMarkerTopic(name=topic, partition_indexes=numbers)
                for topic, numbers in by_topic(partitions)
            ],
            # A transaction that hung before any end shows -1: no leader of the coordinator is older than 0.
            coordinator_epoch=max(transaction.coordinator_epoch, 0),
        )
        return WriteTxnMarkersRequest(markers=[marker])

    def parse(response: Any) -> Iterable[tuple[TopicPartition, int, Any]]:
        for marker in response.markers:
            for topic in marker.topics:
                for p in topic.partitions:
                    yield TopicPartition(topic.name, p.partition_index), p.error_code, None

    return Question(WriteTxnMarkersRequest, build, parse)
