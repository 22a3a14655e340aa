"""What the records of a streams group mean: the only way that its hard state changes."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from ottla.coordinator.group.context import GroupContext, Replay
from ottla.coordinator.group.modern_group import TargetEpoch
from ottla.coordinator.group.of_kind import GroupsByTopic, GroupsOfKind
from ottla.coordinator.group.streams.group import StreamsGroup
from ottla.coordinator.group.streams.member import StreamsGroupMember
from ottla.coordinator.group.streams.records import AssignmentBasis
from ottla.coordinator.group.streams.tasks import Tasks, task_ids
from ottla.coordinator.group.streams.topology import StreamsTopology
from ottla.wire.messages import streams_group_log as log

_NO_TARGET = TargetEpoch(-1, 0)


class StreamsReplay:
    """Owned by the StreamsManager of a shard; `removed` is told of a group that is deleted."""

    def __init__(self, context: GroupContext, removed: Callable[[str], None]) -> None:
        self._groups = GroupsOfKind(context, StreamsGroup)
        self._removed = removed
        self._by_topic = GroupsByTopic()

    def replays(self) -> Mapping[type[Any], Replay]:
        return {
            log.StreamsGroupMetadataKey: self._group,
            log.StreamsGroupMemberMetadataKey: self._member,
            log.StreamsGroupTargetAssignmentMetadataKey: self._target_epoch,
            log.StreamsGroupTargetAssignmentMemberKey: self._target,
            log.StreamsGroupCurrentMemberAssignmentKey: self._assignment,
            log.StreamsGroupTopologyKey: self._topology,
        }

    def groups_that_need(self, topics: Iterable[str]) -> Iterator[StreamsGroup]:
        """Those whose topology needs any of these topics."""
        for group_id in self._by_topic.concerned(topics, self._is_needed):
            group = self._groups.present(group_id)
            if group is not None:
                yield group

    def _is_needed(self, group_id: str, topic: str) -> bool:
        group = self._groups.present(group_id)
        return group is not None and group.topology is not None and topic in group.topology.required_topics

    # ---- one kind of record each ----------------------------------------------------------------------------

    def _group(self, key: log.StreamsGroupMetadataKey, value: log.StreamsGroupMetadataValue | None) -> None:
        if value is not None:
            group = self._groups.made(key.group_id)
            group.set_epoch(value.epoch, value.metadata_hash)
            configs = {config.key: config.value for config in value.last_assignment_configs or ()}
            group.set_basis(AssignmentBasis(value.validated_topology_epoch, configs))
        elif self._groups.removed(key.group_id):
            self._removed(key.group_id)

    def _topology(
        self, key: log.StreamsGroupTopologyKey, value: log.StreamsGroupTopologyValue | None
    ) -> None:
        if value is None:
            group = self._groups.present(key.group_id)
            if group is not None:
                group.set_topology(None)
            return
        topology = StreamsTopology(value)
        self._groups.made(key.group_id).set_topology(topology)
        self._by_topic.note(key.group_id, topology.required_topics)

    def _member(
        self, key: log.StreamsGroupMemberMetadataKey, value: log.StreamsGroupMemberMetadataValue | None
    ) -> None:
        if value is None:
            group = self._groups.present(key.group_id)
            if group is not None:
                group.remove_member(key.member_id)
            return
        group = self._groups.made(key.group_id)
        member = group.members.get(key.member_id) or StreamsGroupMember(key.member_id)
        group.put_member(member.with_metadata(value))

    def _target_epoch(
        self,
        key: log.StreamsGroupTargetAssignmentMetadataKey,
        value: log.StreamsGroupTargetAssignmentMetadataValue | None,
    ) -> None:
        if value is not None:
            target = TargetEpoch(value.assignment_epoch, value.assignment_timestamp)
            self._groups.made(key.group_id).set_target_epoch(target)
            return
        group = self._groups.present(key.group_id)
        if group is not None:
            group.set_target_epoch(_NO_TARGET)

    def _target(
        self,
        key: log.StreamsGroupTargetAssignmentMemberKey,
        value: log.StreamsGroupTargetAssignmentMemberValue | None,
    ) -> None:
        if value is None:
            group = self._groups.present(key.group_id)
            if group is not None:
                group.remove_target(key.member_id)
            return
        tasks = Tasks(
            task_ids(value.active_tasks), task_ids(value.standby_tasks), task_ids(value.warmup_tasks)
        )
        self._groups.made(key.group_id).put_target(key.member_id, tasks)

    def _assignment(
        self,
        key: log.StreamsGroupCurrentMemberAssignmentKey,
        value: log.StreamsGroupCurrentMemberAssignmentValue | None,
    ) -> None:
        group = self._groups.present(key.group_id) if value is None else self._groups.made(key.group_id)
        member = None if group is None else group.members.get(key.member_id)
        if group is None or (member is None and value is None):
            return
        member = member or StreamsGroupMember(key.member_id)
        group.put_member(member.without_assignment() if value is None else member.with_assignment(value))
