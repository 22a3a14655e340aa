"""Offsets on the wire: looked up by timestamp and by leader epoch (KIP-79, KIP-320), committed by groups and fetched.

Requests for every version, and answers read into plain values. Topics go by name up to version 9 of OffsetCommit and
OffsetFetch and by id from 10 on (KIP-848); one group is asked about up to version 7 of OffsetFetch, several from 8 on
(KIP-709). Pure.
"""

from collections.abc import Iterable, Mapping
from itertools import groupby
from operator import index
from typing import Any, NamedTuple

from ottla.client.lookups import Question
from ottla.client.metadata import ClusterMetadata
from ottla.client.network import NetworkCore
from ottla.config.types import INT_MAX, LONG_MAX
from ottla.model.errors import ErrorCode, error_of
from ottla.model.ids import ZERO_UUID, TopicPartition
from ottla.wire.messages.groups.classic import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from ottla.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from ottla.wire.primitives import MAX_STRING_BYTES, is_string

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


# -- committed offsets ------------------------------------------------------------------------------------


# The last version in which topics go by name.
BY_NAME = 9
FETCH_MANY_GROUPS = 8


class OffsetAndMetadata(NamedTuple):
    """A committed offset: that of the next record to read, a note, the leader epoch of the record before."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1

    @classmethod
    def of(cls, value: "int | OffsetAndMetadata") -> "OffsetAndMetadata":
        return value if isinstance(value, OffsetAndMetadata) else cls(value)


class GroupMetadata(NamedTuple):
    """Who commits: a member of a generation (or epoch), or nobody in particular."""

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


Offsets = Mapping[TopicPartition, OffsetAndMetadata]


def to_commit(
    given: Mapping[TopicPartition, int | OffsetAndMetadata],
) -> dict[TopicPartition, OffsetAndMetadata]:
    """What an application wants to be committed; ValueError or TypeError where no request could carry it: it would
    fail where nobody hears it, and hold up the commits behind it."""
    found = {}
    for (topic, partition), value in given.items():
        offset, note, epoch = OffsetAndMetadata.of(value)
        if not is_string(topic) or not is_string(note or ""):
            raise ValueError(
                f"{topic!r}: names and notes are text of up to {MAX_STRING_BYTES} bytes in UTF-8"
            )
        tp, offset, epoch = TopicPartition(topic, index(partition)), index(offset), index(epoch)
        if not (0 <= tp.partition <= INT_MAX and 0 <= offset <= LONG_MAX and -1 <= epoch <= INT_MAX):
            raise ValueError(f"offset {offset} of {tp}, epoch {epoch}: no partition has it")
        found[tp] = OffsetAndMetadata(offset, note, epoch)
    return found


def names_at_most(topics: Iterable[str], metadata: ClusterMetadata) -> int | None:
    """A cap on the version, if one of the topics is not known by its id."""
    return BY_NAME if any(metadata.topic_id(topic) == ZERO_UUID for topic in topics) else None


def offset_commit_request(
    offsets: Offsets, who: GroupMetadata, metadata: ClusterMetadata
) -> OffsetCommitRequest:
    def one(tp: TopicPartition) -> OffsetCommitRequestPartition:
        offset, note, epoch = offsets[tp]
        return OffsetCommitRequestPartition(
            partition_index=tp.partition,
            committed_offset=offset,
            committed_leader_epoch=epoch,
            committed_metadata=note,
        )

    return OffsetCommitRequest(
        group_id=who.group_id,
        generation_id_or_member_epoch=who.generation_id,
        member_id=who.member_id,
        group_instance_id=who.group_instance_id,
        topics=[
            OffsetCommitRequestTopic(
                name=topic,
                topic_id=metadata.topic_id(topic),
                partitions=[one(TopicPartition(topic, number)) for number in numbers],
            )
            for topic, numbers in by_topic(offsets)
        ],
    )


def offset_commit_results(response: Any, metadata: ClusterMetadata) -> dict[TopicPartition, ErrorCode | None]:
    """What became of each partition's commit (also of one within a transaction: the answers look alike)."""
    return {
        TopicPartition(_name(topic, metadata), p.partition_index): error_of(p.error_code)
        for topic in response.topics
        for p in topic.partitions
    }


def offset_commit_error(response: Any) -> ErrorCode | None:
    """The first error in an answer to a commit."""
    codes = (error_of(p.error_code) for topic in response.topics for p in topic.partitions)
    return next((code for code in codes if code is not None), None)


def offset_fetch_request(
    who: GroupMetadata,
    partitions: Iterable[TopicPartition] | None,
    metadata: ClusterMetadata,
    *,
    require_stable: bool,
) -> OffsetFetchRequest:
    """All that a group has committed if `partitions` is None. See `for_version`."""
    topics = None
    if partitions is not None:
        topics = [
            OffsetFetchRequestTopics(
                name=topic, topic_id=metadata.topic_id(topic), partition_indexes=list(numbers)
            )
            for topic, numbers in by_topic(partitions)
        ]
    group = OffsetFetchRequestGroup(
        group_id=who.group_id,
        member_id=who.member_id or None,
        member_epoch=who.generation_id,
        topics=topics,
    )
    return OffsetFetchRequest(groups=[group], require_stable=require_stable)


def offset_fetch_for_version(request: OffsetFetchRequest, version: int) -> OffsetFetchRequest:
    """The one group of the request moved to where an older version has it."""
    if version >= FETCH_MANY_GROUPS:
        return request
    group = request.groups[0]
    topics = None
    if group.topics is not None:
        topics = [
            OffsetFetchRequestTopic(name=t.name, partition_indexes=t.partition_indexes) for t in group.topics
        ]
    stable = request.require_stable and version >= 7  # KIP-447: before that there was nothing to ask for
    return OffsetFetchRequest(group_id=group.group_id, topics=topics, require_stable=stable)


def offset_fetch_error(response: Any) -> ErrorCode | None:
    """The group's error, or the first partition's that passes with time."""
    group = response.groups[0] if response.groups else response
    code = error_of(group.error_code)
    if code is not None:
        return code
    codes = (error_of(p.error_code) for topic in group.topics for p in topic.partitions)
    return next((code for code in codes if code is not None and code.retriable), None)


def fetched_offsets(
    response: Any, metadata: ClusterMetadata
) -> dict[TopicPartition, OffsetAndMetadata | ErrorCode | None]:
    """The committed offset of each partition, None where there is none."""
    group = response.groups[0] if response.groups else response
    out: dict[TopicPartition, OffsetAndMetadata | ErrorCode | None] = {}
    for topic in group.topics:
        for p in topic.partitions:
            tp = TopicPartition(_name(topic, metadata), p.partition_index)
            found = OffsetAndMetadata(p.committed_offset, p.metadata or "", p.committed_leader_epoch)
            out[tp] = error_of(p.error_code) or (found if found.offset >= 0 else None)
    return out


def _name(topic: Any, metadata: ClusterMetadata) -> str:
    name: str = topic.name
    return name or metadata.names_by_id.get(topic.topic_id, "")
