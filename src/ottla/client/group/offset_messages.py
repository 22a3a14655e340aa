"""Committed offsets on the wire: requests for every version, and answers read into plain values.

Topics go by name up to version 9 of OffsetCommit and OffsetFetch and by id from 10 on (KIP-848); one group is
asked about up to version 7 of OffsetFetch, several from 8 on (KIP-709). Pure.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ottla.client.metadata import ClusterMetadata, error_of
from ottla.client.offsets import by_topic
from ottla.model.errors import ErrorCode
from ottla.model.ids import ZERO_UUID, TopicPartition
from ottla.wire.messages.groups import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)

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


def at_most(topics: Iterable[str], metadata: ClusterMetadata) -> int | None:
    """A cap on the version, if one of the topics is not known by its id."""
    return BY_NAME if any(metadata.topic_id(topic) == ZERO_UUID for topic in topics) else None


def commit_request(offsets: Offsets, who: GroupMetadata, metadata: ClusterMetadata) -> OffsetCommitRequest:
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


def commit_results(response: Any, metadata: ClusterMetadata) -> dict[TopicPartition, ErrorCode | None]:
    """What became of each partition's commit (also of one within a transaction: the answers look alike)."""
    return {
        TopicPartition(_name(topic, metadata), p.partition_index): error_of(p.error_code)
        for topic in response.topics
        for p in topic.partitions
    }


def commit_error(response: Any) -> ErrorCode | None:
    """The first error in an answer to a commit."""
    codes = (error_of(p.error_code) for topic in response.topics for p in topic.partitions)
    return next((code for code in codes if code is not None), None)


def fetch_request(
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


def for_version(request: OffsetFetchRequest, version: int) -> OffsetFetchRequest:
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


def fetch_error(response: Any) -> ErrorCode | None:
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
