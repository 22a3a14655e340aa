"""The target assignment of a streams group: what the assignor is shown, and what its answer changes.

A TargetPlan is a snapshot of immutable values: it can be computed in a thread while the group goes on living.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ottla.coordinator.group.assignors.java_order import members_in_order
from ottla.coordinator.group.modern_large import no_target
from ottla.coordinator.group.streams.assignor import AssignmentMember, TaskAssignorError, assign
from ottla.coordinator.group.streams.configured import ConfiguredTopology
from ottla.coordinator.group.streams.member import StreamsGroupMember
from ottla.coordinator.group.streams.tasks import NOTHING, Tasks

log = logging.getLogger("ottla.coordinator.streams")

# Members and tasks up to which an assignment takes no longer than about a millisecond.
INLINE_LIMIT: Final = 200


@dataclass(frozen=True, slots=True)
class TargetPlan:
    """A group as it will be, to be assigned. `joining` is the member whose request asks for it, if one does."""

    epoch: int
    configured: ConfiguredTopology
    configs: Mapping[str, str]
    members: Mapping[str, StreamsGroupMember]
    target: Mapping[str, Tasks]
    joining: StreamsGroupMember | None

    @property
    def is_large(self) -> bool:
        """Would it take the loop's time?"""
        subtopologies = (self.configured.subtopologies or {}) if self.configured.is_ready else {}
        tasks = sum(subtopology.number_of_tasks for subtopology in subtopologies.values())
        return len(self.members) + tasks > INLINE_LIMIT

    def compute(self) -> dict[str, Tasks]:
        """The new tasks of each member that gets others than it had; UNKNOWN_SERVER_ERROR if there are none."""
        assigned = self._assigned()
        return {member_id: new for member_id, new in assigned.items() if self.target.get(member_id) != new}

    def _assigned(self) -> dict[str, Tasks]:
        specs = self._specs()
        if not self.configured.is_ready:
            return dict.fromkeys(specs, NOTHING)
        try:
            return assign(specs, self.configured.subtopologies or {}, self.configs)
        except TaskAssignorError as error:
            log.error("the task assignor failed for epoch %d: %s", self.epoch, error)
            raise no_target(self.epoch, error) from error

    def _specs(self) -> dict[str, AssignmentMember]:
        joining = self.joining
        order = members_in_order(list(self.members), None if joining is None else joining.member_id)
        return {member_id: self._spec(member_id) for member_id in order}

    def _spec(self, member_id: str) -> AssignmentMember:
        joins = self.joining is not None and member_id == self.joining.member_id
        member = self.joining if joins and self.joining is not None else self.members[member_id]
        return AssignmentMember(member.process_id, self.target.get(member_id) or NOTHING)
