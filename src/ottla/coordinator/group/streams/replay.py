"""What the records of a streams group mean: the only way that its hard state changes."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from ottla.coordinator.group.context import GroupContext, Replay
from ottla.coordinator.group.modern_replay import GroupKey, ModernReplay
from ottla.coordinator.group.of_kind import GroupsByTopic
from ottla.coordinator.group.streams.group import StreamsGroup
from ottla.coordinator.group.streams.member import StreamsGroupMember
from ottla.coordinator.group.streams.records import AssignmentBasis
from ottla.coordinator.group.streams.tasks import Tasks, task_ids
from ottla.coordinator.group.streams.topology import StreamsTopology
from ottla.wire.messages import streams_group_log as log


class StreamsReplay(ModernReplay[StreamsGroup]):
    """Owned by the StreamsManager of a shard; `removed` is told of a group that is deleted."""

    def __init__(self, context: GroupContext, removed: Callable[[str], None]) -> None:
        super().__init__(context, StreamsGroup, StreamsGroupMember, _target_of)
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

    # ---- what only streams groups have ----------------------------------------------------------------------

    def _group(self, key: GroupKey, value: log.StreamsGroupMetadataValue | None) -> None:
        if value is not None:
            super()._group(key, value)
            configs = {config.key: config.value for config in value.last_assignment_configs or ()}
            basis = AssignmentBasis(value.validated_topology_epoch, configs)
            self._groups.made(key.group_id).set_basis(basis)
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


def _target_of(value: log.StreamsGroupTargetAssignmentMemberValue) -> Tasks:
    return Tasks(task_ids(value.active_tasks), task_ids(value.standby_tasks), task_ids(value.warmup_tasks))
