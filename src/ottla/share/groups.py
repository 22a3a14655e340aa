"""Share groups between their two coordinators: the group coordinator decides, the share coordinator has the state.

The group coordinator knows the members and which share partitions are to be initialized or deleted. Its decision is
written before the share coordinator is asked, and the answer is written after: whatever happens in between is tried
again. In Kafka this is a part of GroupCoordinatorService.

Owner: the node, on the broker's loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Protocol, TypeVar

from ottla.model.errors import KafkaError
from ottla.model.ids import TopicPartition, Uuid
from ottla.model.pending import Pending, gather
from ottla.share.persister import DefaultStatePersister, PersisterOutcomes
from ottla.wire.messages.groups.share import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponseTopic,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponseTopic,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)

if TYPE_CHECKING:
    from ottla.coordinator.group.context import Caller
    from ottla.coordinator.group.shard import GroupCoordinatorShard
    from ottla.coordinator.group.share.groups import Initialize
    from ottla.coordinator.group.share.manager import HeartbeatOutcome
    from ottla.coordinator.group.share.offsets import Alteration, Deletion
    from ottla.coordinator.runtime import CoordinatorRuntime
    from ottla.coordinator.shard import CoordinatorResult

log = logging.getLogger("ottla.coordinator.share")

T = TypeVar("T")
Deleted = list[DeleteShareGroupOffsetsResponseTopic]


class PartitionMetadataClient(Protocol):
    """Asks the leaders of partitions."""

    def latest_offsets(
        self, partitions: Collection[TopicPartition]
    ) -> Pending[dict[TopicPartition, int | KafkaError]]:
        """The high watermark of each, or why it is not known."""
        ...


class ShareGroupService:
    """What needs both coordinators: heartbeats of members, offsets set and deleted, groups deleted."""

    def __init__(
        self,
        groups: CoordinatorRuntime[GroupCoordinatorShard],
        persister: DefaultStatePersister,
        partitions: PartitionMetadataClient,
    ) -> None:
        self._groups = groups
        self.persister = persister
        self.partitions = partitions

    def _write(
        self, group_id: str, decide: Callable[[GroupCoordinatorShard, int], CoordinatorResult[T]]
    ) -> Pending[T]:
        return self._groups.write(self._groups.partition_for(group_id), decide)

    # ---- members ------------------------------------------------------------------------------------------

    def heartbeat(
        self, caller: Caller, request: ShareGroupHeartbeatRequest
    ) -> Pending[ShareGroupHeartbeatResponse]:
        """The member is answered at once; share partitions new to the group are initialized meanwhile."""
        beat = self._write(
            request.group_id, lambda machine, now_ms: machine.share.heartbeat(caller, request, now_ms)
        )
        beat.then(self._initialize_new)
        return beat.map(lambda decided: decided.response)

    def _initialize_new(self, beat: Pending[HeartbeatOutcome]) -> None:
        initialize = None if beat.error is not None else beat.result().initialize
        if initialize is not None:
            self._initialize(initialize)

    def _initialize(self, asked: Initialize) -> Pending[PersisterOutcomes]:
        """The share coordinator's answers, when they are written down; if one failed none counts."""
        group_id = asked.group_id
        answered = self.persister.initialize(group_id, asked.state_epoch, asked.starts)
        return answered.and_then(lambda outcomes: self._note_initialized(group_id, outcomes))

    def _note_initialized(self, group_id: str, outcomes: PersisterOutcomes) -> Pending[PersisterOutcomes]:
        partitions = _partitions(outcomes)
        failed = first_error(outcomes)
        if failed is not None:
            log.error("group %s: share partitions cannot be set up: %s", group_id, failed)
            return self._abandon(group_id, partitions).map(lambda _: outcomes)
        noted = self._write(
            group_id, lambda machine, _: machine.share.offsets.initialized(group_id, partitions)
        )
        noted.then(lambda done: self._abandon_if_not_noted(done, group_id, partitions))
        return noted.map(lambda _: outcomes)

    def _abandon_if_not_noted(
        self, noted: Pending[bool], group_id: str, partitions: Mapping[Uuid, Set[int]]
    ) -> None:
        if noted.error is not None:
            self._abandon(group_id, partitions)
        elif not noted.result():
            # Its epoch would keep a group that is made under the same name from setting them up.
            self._delete_state_of(group_id, {topic_id: sorted(p) for topic_id, p in partitions.items()})

    def _abandon(self, group_id: str, partitions: Mapping[Uuid, Set[int]]) -> Pending[None]:
        abandoned = self._write(
            group_id, lambda machine, _: machine.share.offsets.not_initialized(group_id, partitions)
        )
        return abandoned.map(lambda _: None, lambda error: _log_failure(group_id, error))

    # ---- offsets ------------------------------------------------------------------------------------------

    def alter(
        self, request: AlterShareGroupOffsetsRequest
    ) -> Pending[list[AlterShareGroupOffsetsResponseTopic]]:
        """Set where a group without members starts."""
        decided = self._write(
            request.group_id, lambda machine, now_ms: machine.share.offsets.alter(request, now_ms)
        )
        return decided.and_then(self._alter)

    def _alter(self, alteration: Alteration) -> Pending[list[AlterShareGroupOffsetsResponseTopic]]:
        topics, initialize = alteration
        if not initialize.starts:
            return Pending.of(topics)
        answered = self.persister.initialize(*initialize)
        return answered.and_then(lambda outcomes: self._altered(initialize.group_id, topics, outcomes))

    def _altered(
        self, group_id: str, topics: list[AlterShareGroupOffsetsResponseTopic], outcomes: PersisterOutcomes
    ) -> Pending[list[AlterShareGroupOffsetsResponseTopic]]:
        if first_error(outcomes) is None:
            noted = self._note_initialized(group_id, outcomes)
            return noted.map(lambda _: topics, lambda error: _logged(group_id, error, topics))
        for topic in topics:
            for partition in topic.partitions:
                error = outcomes.get(topic.topic_id, {}).get(partition.partition_index)
                if partition.error_code == 0 and error is not None:
                    partition.error_code, partition.error_message = int(error.code), str(error)
        return Pending.of(topics)

    def delete_offsets(self, request: DeleteShareGroupOffsetsRequest) -> Pending[Deleted]:
        """Forget topics of a group without members."""
        decided = self._write(
            request.group_id, lambda machine, _: machine.share.offsets.begin_deletion(request)
        )
        return decided.and_then(lambda deletion: self._delete(request.group_id, deletion))

    def _delete(self, group_id: str, deletion: Deletion) -> Pending[Deleted]:
        if not deletion.partitions:
            return Pending.of(deletion.refused)
        answered = self.persister.delete(group_id, deletion.partitions)
        return answered.and_then(lambda outcomes: self._note_deleted(group_id, deletion.refused, outcomes))

    def _note_deleted(self, group_id: str, refused: Deleted, outcomes: PersisterOutcomes) -> Pending[Deleted]:
        done: list[Uuid] = []
        for topic_id, answers in outcomes.items():
            error = first_error({topic_id: answers})
            if error is None:
                done.append(topic_id)
            else:
                refused.append(_not_deleted(topic_id, error))
        if not done:
            return self._note_state_deleted(group_id, outcomes).map(lambda _: refused)
        noted = self._write(
            group_id,
            lambda machine, _: machine.share.offsets.complete_deletion(group_id, done, _partitions(outcomes)),
        )
        return noted.map(lambda topics: topics + refused)

    # ---- groups -------------------------------------------------------------------------------------------

    def delete_state(self, partition: int, group_ids: Sequence[str]) -> Pending[dict[str, KafkaError]]:
        """Before groups are deleted: the share groups among them are forgotten by the share coordinator.

        Those that must stay, with the reason.
        """
        decided = self._groups.write(
            partition, lambda machine, _: machine.share.offsets.begin_group_deletion(group_ids)
        )
        return decided.and_then(self._delete_state)

    def _delete_state(
        self, decided: Mapping[str, Mapping[Uuid, Sequence[int]] | KafkaError]
    ) -> Pending[dict[str, KafkaError]]:
        refused = {group_id: why for group_id, why in decided.items() if isinstance(why, KafkaError)}
        asked = [
            self._delete_state_of(group_id, partitions)
            for group_id, partitions in decided.items()
            if not isinstance(partitions, KafkaError)
        ]
        return gather(asked).map(lambda failed: refused | {g: why for g, why in failed if why is not None})

    def _delete_state_of(
        self, group_id: str, partitions: Mapping[Uuid, Sequence[int]]
    ) -> Pending[tuple[str, KafkaError | None]]:
        answered = self.persister.delete(group_id, partitions)
        return answered.and_then(lambda outcomes: self._note_state_deleted(group_id, outcomes))

    def _note_state_deleted(
        self, group_id: str, outcomes: PersisterOutcomes
    ) -> Pending[tuple[str, KafkaError | None]]:
        noted = self._write(
            group_id, lambda machine, _: machine.share.offsets.state_deleted(group_id, _partitions(outcomes))
        )
        return noted.map(lambda _: (group_id, first_error(outcomes)), lambda error: (group_id, error))


def _partitions(outcomes: PersisterOutcomes) -> dict[Uuid, frozenset[int]]:
    return {topic_id: frozenset(answers) for topic_id, answers in outcomes.items()}


def first_error(outcomes: PersisterOutcomes) -> KafkaError | None:
    return next((e for answers in outcomes.values() for e in answers.values() if e is not None), None)


def _not_deleted(topic_id: Uuid, error: KafkaError) -> DeleteShareGroupOffsetsResponseTopic:
    return DeleteShareGroupOffsetsResponseTopic(
        topic_id=topic_id, topic_name="", error_code=int(error.code), error_message=str(error)
    )


def _log_failure(group_id: str, error: KafkaError) -> None:
    log.error("group %s: how far its share partitions are cannot be written: %s", group_id, error)


def _logged(group_id: str, error: KafkaError, value: T) -> T:
    _log_failure(group_id, error)
    return value
