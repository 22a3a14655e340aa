"""Looking up offsets: by timestamp, at the ends of the log, and by leader epoch (KIP-79, KIP-320)."""

from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any, NamedTuple

from ottla.client.fanout import Question
from ottla.client.metadata import ClusterMetadata
from ottla.client.network import NetworkCore
from ottla.model.ids import TopicPartition
from ottla.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6

# The version that understands each special timestamp.
_AT_LEAST = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
_CONSUMER = -1


class OffsetAndTimestamp(NamedTuple):
    """An offset found by a timestamp; offset -1 if there is no record at or after it."""

    offset: int
    timestamp: int
    leader_epoch: int


class EpochEnd(NamedTuple):
    """Where a leader epoch ends in the leader's log."""

    leader_epoch: int
    end_offset: int


def by_topic(partitions: Iterable[TopicPartition]) -> list[tuple[str, list[int]]]:
    """Partitions under their topics, as every request wants them."""
    grouped = groupby(sorted(partitions), key=lambda tp: tp.topic)
    return [(topic, [tp.partition for tp in group]) for topic, group in grouped]


def list_offsets_question(
    timestamps: Mapping[TopicPartition, int],
    network: NetworkCore,
    *,
    read_committed: bool,
) -> Question:
    """The offsets for timestamps (or special ones below zero); results are OffsetAndTimestamp."""
    metadata, timeout_ms = network.metadata, network.config.request_timeout_ms

    def build(partitions: list[TopicPartition]) -> ListOffsetsRequest:
        def one(tp: TopicPartition) -> ListOffsetsPartition:
            return ListOffsetsPartition(
                partition_index=tp.partition,
                current_leader_epoch=metadata.leader_epoch(tp),
                timestamp=timestamps[tp],
            )

        return ListOffsetsRequest(
            replica_id=_CONSUMER,
            isolation_level=int(read_committed),
            topics=[
                ListOffsetsTopic(name=topic, partitions=[one(TopicPartition(topic, p)) for p in numbers])
                for topic, numbers in by_topic(partitions)
            ],
            timeout_ms=timeout_ms,
        )

    def parse(response: Any) -> Iterable[tuple[TopicPartition, int, Any]]:
        for topic in response.topics:
            for p in topic.partitions:
                found = OffsetAndTimestamp(p.offset, p.timestamp, p.leader_epoch)
                yield TopicPartition(topic.name, p.partition_index), p.error_code, found

    at_least = max((_AT_LEAST.get(timestamp, 0) for timestamp in timestamps.values()), default=0)
    return Question(ListOffsetsRequest, build, parse, at_least)


def epoch_end_question(epochs: Mapping[TopicPartition, int], metadata: ClusterMetadata) -> Question:
    """Where these leader epochs end; results are EpochEnd."""

    def build(partitions: list[TopicPartition]) -> OffsetForLeaderEpochRequest:
        def one(tp: TopicPartition) -> OffsetForLeaderPartition:
            return OffsetForLeaderPartition(
                partition=tp.partition,
                current_leader_epoch=metadata.leader_epoch(tp),
                leader_epoch=epochs[tp],
            )

        return OffsetForLeaderEpochRequest(
            replica_id=_CONSUMER,
            topics=[
                OffsetForLeaderTopic(topic=topic, partitions=[one(TopicPartition(topic, p)) for p in numbers])
                for topic, numbers in by_topic(partitions)
            ],
        )

    def parse(response: Any) -> Iterable[tuple[TopicPartition, int, Any]]:
        for topic in response.topics:
            for p in topic.partitions:
                end = EpochEnd(p.leader_epoch, p.end_offset)
                yield TopicPartition(topic.topic, p.partition), p.error_code, end

    return Question(OffsetForLeaderEpochRequest, build, parse)
