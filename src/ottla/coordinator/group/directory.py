"""The groups of a shard whatever their kind: listing them, deleting them.

Owner: the GroupMachine of a shard.
"""

from collections.abc import Collection, Sequence

from ottla.coordinator.group.context import GroupContext
from ottla.coordinator.group.group import GroupType
from ottla.coordinator.group.offsets import OffsetManager
from ottla.coordinator.result import CoordinatorRecord, Result
from ottla.model.errors import KafkaError
from ottla.wire.messages.groups import DeletableGroupResult, ListedGroup

_TYPES = {kind.value: kind for kind in GroupType}
# What a request calls the state, where that is not its name in small letters.
_FILTER_NAMES = {"NotReady": "not_ready"}


class GroupDirectory:
    """See the module."""

    def __init__(self, context: GroupContext, offsets: OffsetManager) -> None:
        self._context = context
        self._offsets = offsets

    def listing(self, states: Collection[str], types: Collection[str]) -> list[ListedGroup]:
        """Those in one of these states (KIP-518) and of one of these types (KIP-848); of all, if none is said.

        States compare without regard to case and blanks around them; a type that does not exist fits no group.
        """
        wanted_states = {state.lower().strip() for state in states}
        wanted_types = {_TYPES.get(kind.lower()) for kind in types}
        listed = []
        for group in self._context.groups.committed_view().values():
            state = group.state_name()
            if wanted_states and _FILTER_NAMES.get(state, state.lower()) not in wanted_states:
                continue
            if wanted_types and group.type not in wanted_types:
                continue
            listed.append(
                ListedGroup(
                    group_id=group.group_id,
                    protocol_type=group.protocol_type,
                    group_state=state,
                    group_type=group.type.value,
                )
            )
        return listed

    def delete(self, group_ids: Sequence[str]) -> Result[list[DeletableGroupResult]]:
        """Groups without members, with all their offsets; each has its own success or error."""
        records: list[CoordinatorRecord] = []
        results = []
        for group_id in group_ids:
            result = DeletableGroupResult(group_id=group_id)
            try:
                records.extend(self._tombstones(group_id))
            except KafkaError as error:
                result.error_code = int(error.code)
            results.append(result)
        # A group whose last batch could not be written is still there, and can be deleted again.
        return Result(results, records, atomic=False)

    def _tombstones(self, group_id: str) -> list[CoordinatorRecord]:
        group = self._context.group(group_id)
        group.validate_delete()
        return [*self._offsets.tombstones_for_group(group_id), *group.tombstones()]
