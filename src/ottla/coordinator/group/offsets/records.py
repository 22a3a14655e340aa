"""The records of committed offsets: Kafka's OffsetCommitKey and OffsetCommitValue, one by one or as a bulk.

Nearly all commits are without metadata and with the topics' ids. The records of such a commit are one OffsetBulk:
written as bytes and replayed into the store without a message object for each. Any other commit is a list of records.
Both leave the same log and the same state, and a test holds them to it.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Final

from ottla.coordinator.group.group import CommitPartitionValidator
from ottla.coordinator.group.offsets.store import NO_EXPIRE_TIMESTAMP, OffsetAndMetadata, OffsetStore, Place
from ottla.coordinator.group.serde import (
    NO_METADATA,
    PARTITION,
    VALUE,
    VALUE_HEAD,
    VALUE_VERSION,
    key_head,
    value_tail,
)
from ottla.coordinator.shard import CoordinatorRecord, NewRecord
from ottla.model.ids import Uuid
from ottla.wire.messages.groups.classic import (
    OffsetCommitRequestTopic,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from ottla.wire.messages.logs.offsets import OffsetCommitKey, OffsetCommitValue

# Versions of the record: with an expiry of its own, and the newest, with the topic's id.
VALUE_WITH_EXPIRY: Final = 1
VALUE_WITH_TOPIC_ID: Final = 4

_new_row = OffsetAndMetadata._make


def offset_record(group_id: str, topic: str, partition: int, value: OffsetCommitValue) -> CoordinatorRecord:
    """The record of a committed offset, in the version that 4.3 writes."""
    version = VALUE_WITH_TOPIC_ID if value.expire_timestamp == NO_EXPIRE_TIMESTAMP else VALUE_WITH_EXPIRY
    return CoordinatorRecord(
        OffsetCommitKey(group=group_id, topic=topic, partition=partition), value, version
    )


def offset_tombstone(group_id: str, topic: str, partition: int) -> CoordinatorRecord:
    return CoordinatorRecord(OffsetCommitKey(group=group_id, topic=topic, partition=partition), None)


@lru_cache(maxsize=4096)
def _taken(partition: int) -> OffsetCommitResponsePartition:
    """The answer about a partition whose offset is stored: always the same, and nobody changes it."""
    return OffsetCommitResponsePartition(partition_index=partition)


class OffsetBulk:
    """Made by a decision, topic by topic; a RecordBulk."""

    __slots__ = (
        "_ensure_group",
        "_group",
        "_group_id",
        "_now_ms",
        "_rows",
        "_store",
        "encoded",
        "payload_bytes",
    )

    def __init__(
        self, store: OffsetStore, ensure_group: Callable[[str], None], group_id: str, now_ms: int
    ) -> None:
        self._store = store
        self._ensure_group = ensure_group
        self._group_id = group_id
        self._group = group_id.encode()
        self._now_ms = now_ms
        self._rows: list[tuple[Place, int, int, Uuid]] = []
        self.encoded: list[NewRecord] = []
        self.payload_bytes = 0

    def add(
        self, topic: OffsetCommitRequestTopic, validator: CommitPartitionValidator | None
    ) -> OffsetCommitResponseTopic:
        """Take in a topic of the request; the answer about it."""
        name, topic_id, now_ms = topic.name, topic.topic_id, self._now_ms
        head, tail = key_head(self._group, name.encode()), value_tail(topic_id)
        self.payload_bytes += (len(head) + PARTITION.size + VALUE.size) * len(topic.partitions)
        rows, encoded = self._rows, self.encoded
        answers = []
        for partition in topic.partitions:
            index = partition.partition_index
            if validator is not None:
                validator(name, topic_id, index)
            offset, epoch = partition.committed_offset, partition.committed_leader_epoch
            rows.append(((name, index), offset, epoch, topic_id))
            value = VALUE_HEAD.pack(VALUE_VERSION, offset, epoch, NO_METADATA, now_ms) + tail
            encoded.append((now_ms, head + PARTITION.pack(index), value, ()))
            answers.append(_taken(index))
        return OffsetCommitResponseTopic(name=name, topic_id=topic_id, partitions=answers)

    def replay(self, first_offset: int) -> None:
        if not self._rows:
            return
        offsets = self._store.by_group.get(self._group_id)
        if offsets is None:
            offsets = self._store.new_group(self._group_id)
        self._ensure_group(self._group_id)
        now_ms = self._now_ms
        # A partition that stands in the request twice has its last offset.
        offsets.update(
            {
                place: _new_row((offset, epoch, "", now_ms, NO_EXPIRE_TIMESTAMP, topic_id, record_offset))
                for record_offset, (place, offset, epoch, topic_id) in enumerate(self._rows, first_offset)
            }
        )
