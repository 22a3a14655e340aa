"""What the hand-tuned paths give, in the terms of the declared messages, and the reverse: to compare the two."""

from typing import Any

from ottla.model.ids import Uuid
from ottla.wire.fast.fetch import FetchFast, Wanted
from ottla.wire.fast.produce import ProduceFast
from ottla.wire.messages.fetch import FetchRequest
from ottla.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData


def produce_as_message(fast: ProduceFast, buffer: memoryview, version: int) -> ProduceRequest:
    return ProduceRequest(
        transactional_id=fast.transactional_id,
        acks=fast.acks,
        timeout_ms=fast.timeout_ms,
        topic_data=[
            TopicProduceData(
                **topic_key(topic, "name"),
                partition_data=[
                    PartitionProduceData(index=index, records=None if end < 0 else bytes(buffer[start:end]))
                    for index, start, end in spans
                ],
            )
            for topic, spans in fast.topics
        ],
    )


def topic_key(topic: str | bytes, name: str = "topic") -> dict[str, Any]:
    """The field of a struct that holds a topic's key."""
    return {name: topic} if isinstance(topic, str) else {"topic_id": Uuid(topic)}


def fetch_as_fast(request: FetchRequest, version: int) -> FetchFast:
    by_state = version >= 15
    return FetchFast(
        request.replica_state.replica_id if by_state else request.replica_id,
        request.replica_state.replica_epoch if by_state else -1,
        request.max_wait_ms,
        request.min_bytes,
        request.max_bytes,
        request.isolation_level,
        request.session_id,
        request.session_epoch,
        [
            Wanted(
                topic.topic_id if version >= 13 else topic.topic,
                partition.partition,
                partition.current_leader_epoch,
                partition.fetch_offset,
                partition.last_fetched_epoch,
                partition.log_start_offset,
                partition.partition_max_bytes,
                partition.replica_directory_id,
                partition.high_watermark,
            )
            for topic in request.topics
            for partition in topic.partitions
        ],
        [
            (topic.topic_id if version >= 13 else topic.topic, topic.partitions)
            for topic in request.forgotten_topics_data
        ],
        request.rack_id,
        request.cluster_id,
    )
