"""Reading committed offsets.

Whoever asks for stable offsets (KIP-447) is answered from the newest state, once that is committed, and told which
partitions have an offset in a transaction that is still open. Everybody else is answered from committed state.
"""

from typing import NamedTuple

from ottla.coordinator.group.context import GroupContext
from ottla.coordinator.group.group import Group
from ottla.coordinator.group.offset_store import GroupOffsets, OffsetAndMetadata, OffsetStore, Place
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import ZERO_UUID, Uuid
from ottla.wire.messages.groups import (
    OffsetFetchRequestGroup,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)

INVALID_OFFSET = -1
NO_LEADER_EPOCH = -1


class OffsetFetches:
    """The questions about offsets."""

    def __init__(self, context: GroupContext, store: OffsetStore) -> None:
        self._context = context
        self._store = store

    def fetch(self, request: OffsetFetchRequestGroup, *, require_stable: bool) -> OffsetFetchResponseGroup:
        """Of the partitions asked for, or of all that have any."""
        if request.topics is None:
            return self.fetch_all(request, require_stable=require_stable).response()
        offsets = self._offsets(request, require_stable)
        reader = _Reader(offsets, self._open_places(request.group_id) if require_stable else None)
        topics = [
            reader.topic(topic.name, topic.topic_id, topic.partition_indexes, not require_stable)
            for topic in request.topics
        ]
        return OffsetFetchResponseGroup(group_id=request.group_id, topics=topics)

    def fetch_all(self, request: OffsetFetchRequestGroup, *, require_stable: bool) -> "AllOffsets":
        """Of all partitions that have any: as they are now, to be turned into an answer where there is time for it."""
        offsets = self._offsets(request, require_stable)
        rows: dict[Place, OffsetAndMetadata] = {}
        if offsets is not None:
            rows = dict(offsets.items() if require_stable else offsets.committed_view())
        unstable = self._open_places(request.group_id) if require_stable else frozenset()
        return AllOffsets(request.group_id, rows, unstable)

    def _offsets(self, request: OffsetFetchRequestGroup, newest: bool) -> GroupOffsets | None:
        """The group's offsets; None if there is no such group."""
        groups = self._context.groups
        group: Group | None = groups.get(request.group_id) if newest else groups.committed(request.group_id)
        if group is None:
            return None
        try:
            group.validate_offset_fetch(request.member_id, request.member_epoch)
        except KafkaError as error:
            if error.code is ErrorCode.GROUP_ID_NOT_FOUND:
                return None
            raise
        by_group = self._store.by_group
        return by_group.get(request.group_id) if newest else by_group.committed(request.group_id)

    def _open_places(self, group_id: str) -> frozenset[Place]:
        places = self._store.open_by_group.get(group_id)
        return frozenset(places.keys()) if places is not None else frozenset()


class AllOffsets(NamedTuple):
    """All offsets of a group at one time; immutable, so that a thread may read it."""

    group_id: str
    rows: dict[Place, OffsetAndMetadata]
    unstable: frozenset[Place]

    def response(self) -> OffsetFetchResponseGroup:
        topics: dict[str, OffsetFetchResponseTopics] = {}
        for place, row in self.rows.items():
            topic = topics.get(place[0])
            if topic is None:
                topic = OffsetFetchResponseTopics(name=place[0], topic_id=ZERO_UUID, partitions=[])
                topics[place[0]] = topic
            topic.partitions.append(_answer(place, row, self.unstable))
        return OffsetFetchResponseGroup(group_id=self.group_id, topics=list(topics.values()))


class _Reader:
    """One group's offsets, turned into an answer."""

    def __init__(self, offsets: GroupOffsets | None, unstable: frozenset[Place] | None) -> None:
        self._offsets = offsets
        self._unstable = unstable

    def topic(
        self, name: str, topic_id: Uuid, partitions: list[int], committed: bool
    ) -> OffsetFetchResponseTopics:
        answers = []
        offsets = self._offsets
        find = _no_offset if offsets is None else offsets.committed if committed else offsets.get
        for index in partitions:
            place = (name, index)
            row = find(place)
            if row is not None and not _same_topic(row.topic_id, topic_id):
                row = None
            answers.append(_answer(place, row, self._unstable))
        return OffsetFetchResponseTopics(name=name, topic_id=topic_id, partitions=answers)


def _answer(
    place: Place, row: OffsetAndMetadata | None, unstable: frozenset[Place] | None
) -> OffsetFetchResponsePartitions:
    if unstable and place in unstable:
        return _nothing(place[1], ErrorCode.UNSTABLE_OFFSET_COMMIT)
    if row is None:
        return _nothing(place[1], ErrorCode.NONE)
    return OffsetFetchResponsePartitions(
        partition_index=place[1],
        committed_offset=row.offset,
        committed_leader_epoch=row.leader_epoch,
        metadata=row.metadata,
    )


def _no_offset(place: Place) -> None:
    """In a group that there is not."""


def _same_topic(stored: Uuid, asked: Uuid) -> bool:
    """An offset of a topic that was deleted and made again is none; an id that is not told fits any."""
    return stored in (asked, ZERO_UUID) or asked == ZERO_UUID


def _nothing(partition: int, code: ErrorCode) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=partition,
        committed_offset=INVALID_OFFSET,
        committed_leader_epoch=NO_LEADER_EPOCH,
        metadata="",
        error_code=int(code),
    )
