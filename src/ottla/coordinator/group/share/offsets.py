"""Where a share group starts to read: setting it, forgetting it, and what a group's deletion forgets.

The offsets themselves are the share coordinator's. Here it is decided whether they may be changed (nobody is in the
group), and written down what is being set up or forgotten, before the share coordinator is asked and after it has
answered.

Owner: the ShareGroupManager of a shard.
"""

from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple

from ottla.coordinator.group.share.group import ShareGroup
from ottla.coordinator.group.share.groups import Initialize, ShareGroups
from ottla.coordinator.group.share.records import UNKNOWN_NAME, ShareTopic, TopicStates, combined
from ottla.coordinator.shard import CoordinatorRecord, CoordinatorResult
from ottla.metadata.registrations import TopicImage
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import ZERO_UUID, Uuid
from ottla.wire.messages.groups.share import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
    AlterShareGroupOffsetsResponsePartition,
    AlterShareGroupOffsetsResponseTopic,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponseTopic,
)

NO_SUCH_PARTITION = "There is no such topic or partition."


class Alteration(NamedTuple):
    """What an AlterShareGroupOffsets comes to, before the share coordinator is asked."""

    topics: list[AlterShareGroupOffsetsResponseTopic]
    initialize: Initialize


class Deletion(NamedTuple):
    """Share partitions that the share coordinator is to forget, and topics that were refused."""

    partitions: Mapping[Uuid, Sequence[int]]
    refused: list[DeleteShareGroupOffsetsResponseTopic]


class ShareOffsets:
    """Setting and deleting the offsets, and the state, of share groups."""

    def __init__(self, groups: ShareGroups) -> None:
        self._groups = groups
        self._context = groups.context

    # ---- set up or not --------------------------------------------------------------------------------------

    def initialized(self, group_id: str, partitions: Mapping[Uuid, Set[int]]) -> CoordinatorResult[bool]:
        """The share coordinator has set these up; False if the group is deleted by now, and nobody needs them.

        Its name may be another kind of group's then, whose place a record of this one would take.
        """
        if not isinstance(self._context.groups.get(group_id), ShareGroup):
            return CoordinatorResult(False)
        if not partitions:
            return CoordinatorResult(True)
        topics = {
            topic_id: ShareTopic(self._groups.name(topic_id) or UNKNOWN_NAME, frozenset(numbers))
            for topic_id, numbers in partitions.items()
        }
        self._groups.forget_times(group_id, partitions.keys())
        states = self._groups.states_of(group_id).done(topics)
        return CoordinatorResult(True, [self._groups.states_record(group_id, states)])

    def not_initialized(self, group_id: str, partitions: Mapping[Uuid, Set[int]]) -> CoordinatorResult[None]:
        """The share coordinator could not set these up: the next heartbeat tries again."""
        states = self._groups.states_of(group_id)
        self._groups.forget_times(group_id, partitions.keys())
        if not states.initializing or not partitions:
            return CoordinatorResult(None)
        return CoordinatorResult(None, [self._groups.states_record(group_id, states.given_up(partitions))])

    def initialized_partitions(self, group_id: str) -> dict[Uuid, Sequence[int]]:
        """What is set up, as it is committed."""
        states = self._groups.states.committed(group_id) or TopicStates()
        return {topic_id: sorted(topic.partitions) for topic_id, topic in states.initialized.items()}

    # ---- setting where to start -----------------------------------------------------------------------------

    def alter(self, request: AlterShareGroupOffsetsRequest, now_ms: int) -> CoordinatorResult[Alteration]:
        """A group that is not there is made: its first members start at these offsets."""
        group = self._groups.group_or_new(request.group_id)
        if not group.is_empty():
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP)
        _require_sound(request)
        topics: dict[Uuid, ShareTopic] = {}
        starts: dict[Uuid, dict[int, int]] = {}
        answers = []
        for asked in request.topics:
            image = self._context.image.topic(asked.topic_name)
            answers.append(_altered(asked, image))
            if image is not None:
                known = [p for p in asked.partitions if p.partition_index < len(image.partitions)]
                numbers = frozenset(p.partition_index for p in known)
                if image.id in topics:  # named twice
                    numbers |= topics[image.id].partitions
                topics[image.id] = ShareTopic(asked.topic_name, numbers)
                if known:
                    starts.setdefault(image.id, {}).update((p.partition_index, p.start_offset) for p in known)
        written = [self._groups.begun(group.group_id, topics, now_ms)] if topics else []
        alteration = Alteration(answers, Initialize(group.group_id, group.epoch, starts))
        return CoordinatorResult(alteration, written)

    # ---- forgetting -----------------------------------------------------------------------------------------

    def begin_deletion(self, request: DeleteShareGroupOffsetsRequest) -> CoordinatorResult[Deletion]:
        """Topics of a group without members; the share coordinator is asked next."""
        group = self._groups.group(request.group_id)
        group.validate_delete()
        states = self._groups.states.get(request.group_id)
        if states is None:
            return CoordinatorResult(Deletion({}, []))
        partitions: dict[Uuid, Sequence[int]] = {}
        refused = []
        for asked in request.topics:
            topic = self._context.image.topic(asked.topic_name)
            if topic is None:
                refused.append(_refused(asked.topic_name, NO_SUCH_PARTITION))
            elif topic.id in states.initialized:
                partitions[topic.id] = sorted(states.initialized[topic.id].partitions)
            elif topic.id in states.deleting:
                partitions[topic.id] = range(len(topic.partitions))
            else:
                refused.append(_refused(asked.topic_name, "There is nothing to forget."))
        states = states.deletion_begun(partitions.keys())
        return CoordinatorResult(
            Deletion(partitions, refused), [self._groups.states_record(group.group_id, states)]
        )

    def complete_deletion(
        self, group_id: str, topic_ids: Sequence[Uuid], asked: Mapping[Uuid, Set[int]]
    ) -> CoordinatorResult[list[DeleteShareGroupOffsetsResponseTopic]]:
        """Of the partitions it was asked to delete, the share coordinator has forgotten those of these topics."""
        states = self._groups.states.get(group_id)
        if states is None:
            return CoordinatorResult([])
        answers = [
            DeleteShareGroupOffsetsResponseTopic(
                topic_id=topic_id, topic_name=self._groups.name(topic_id) or UNKNOWN_NAME
            )
            for topic_id in topic_ids
        ]
        forgotten = states.deleted(asked, frozenset(topic_ids))
        return CoordinatorResult(answers, [self._groups.states_record(group_id, forgotten)])

    def state_deleted(self, group_id: str, asked: Mapping[Uuid, Set[int]]) -> CoordinatorResult[None]:
        """The share coordinator was asked to delete these; whether it has all of them is not said."""
        states = self._groups.states.get(group_id)
        after = None if states is None else states.deleted(asked, frozenset())
        if after is None or after == states:
            return CoordinatorResult(None)
        return CoordinatorResult(None, [self._groups.states_record(group_id, after)])

    def begin_group_deletion(
        self, group_ids: Sequence[str]
    ) -> CoordinatorResult[dict[str, Mapping[Uuid, Sequence[int]] | KafkaError]]:
        """For every share group among these: what the share coordinator is to forget first, or why it must stay."""
        outcomes: dict[str, Mapping[Uuid, Sequence[int]] | KafkaError] = {}
        written: list[CoordinatorRecord] = []
        for group_id in group_ids:
            try:
                self._groups.group(group_id).validate_delete()
                partitions = self._forget_all(group_id, written)
            except KafkaError as error:
                if (
                    error.code is not ErrorCode.GROUP_ID_NOT_FOUND
                ):  # another kind of group, or none: not ours to say
                    outcomes[group_id] = error
            else:
                if partitions:
                    outcomes[group_id] = partitions
        return CoordinatorResult(outcomes, written, atomic=False)

    def _forget_all(self, group_id: str, written: list[CoordinatorRecord]) -> dict[Uuid, Sequence[int]]:
        states = self._groups.states.get(group_id)
        if states is None:
            return {}
        candidates = combined(states.initialized, states.initializing)
        # What an earlier deletion did not finish is tried again.
        for topic_id in states.deleting:
            topic = self._context.image.topic_by_id(topic_id)
            if topic is not None:
                candidates[topic_id] = ShareTopic(topic.name, frozenset(topic.partitions))
        deleting = TopicStates(deleting=frozenset(candidates))
        written.append(self._groups.states_record(group_id, deleting))
        # Kafka writes down what it is asked to set up before it looks at it: nothing, or negative partitions. The
        # share coordinator has no state of those.
        asked = {topic_id: sorted(p for p in t.partitions if p >= 0) for topic_id, t in candidates.items()}
        return {topic_id: numbers for topic_id, numbers in asked.items() if numbers}

    def forget_topics(self, topic_ids: frozenset[Uuid]) -> CoordinatorResult[None]:
        """Topics were deleted; the share coordinator hears of it by itself."""
        written = [
            self._groups.states_record(group_id, states.without(topic_ids))
            for group_id, states in self._groups.states.items()
            if states.mentions(topic_ids)
        ]
        return CoordinatorResult(None, written, atomic=False)


def _require_sound(request: AlterShareGroupOffsetsRequest) -> None:
    """Kafka refuses negative partitions with this error too, but only when they are written down already: the group
    exists from then on, and cannot be deleted at the first attempt."""
    if any(p.partition_index < 0 for topic in request.topics for p in topic.partitions):
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "A partition's number is not negative.")


def _altered(
    asked: AlterShareGroupOffsetsRequestTopic, topic: TopicImage | None
) -> AlterShareGroupOffsetsResponseTopic:
    count = 0 if topic is None else len(topic.partitions)
    return AlterShareGroupOffsetsResponseTopic(
        topic_name=asked.topic_name,
        topic_id=ZERO_UUID if topic is None else topic.id,
        partitions=[_altered_partition(partition, count) for partition in asked.partitions],
    )


def _altered_partition(
    asked: AlterShareGroupOffsetsRequestPartition, count: int
) -> AlterShareGroupOffsetsResponsePartition:
    answer = AlterShareGroupOffsetsResponsePartition(partition_index=asked.partition_index)
    if asked.partition_index >= count:
        answer.error_code = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        answer.error_message = NO_SUCH_PARTITION
    return answer


def _refused(topic_name: str, why: str) -> DeleteShareGroupOffsetsResponseTopic:
    return DeleteShareGroupOffsetsResponseTopic(
        topic_name=topic_name,
        topic_id=ZERO_UUID,
        error_code=int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        error_message=why,
    )
