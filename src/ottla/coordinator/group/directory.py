"""The groups of a shard whatever their kind: listing them, deleting them.

Owner: the GroupMachine of a shard.
"""

from collections import deque
from collections.abc import Collection, Sequence
from typing import Final

from ottla.coordinator.group.context import GroupContext
from ottla.coordinator.group.group import Group, GroupType
from ottla.coordinator.group.offsets import OffsetManager
from ottla.coordinator.result import Answer, CoordinatorRecord, Effect, Result, StartTimer
from ottla.model.errors import KafkaError
from ottla.model.pending import Pending
from ottla.wire.messages.groups import DeletableGroupResult, ListedGroup

# Records of a deletion in one decision: some milliseconds.
SLICE_RECORDS: Final = 300
_TYPES = {kind.value: kind for kind in GroupType}
# What a request calls the state, where that is not its name in small letters.
_FILTER_NAMES = {"NotReady": "not_ready"}


class GroupDirectory:
    """See the module."""

    def __init__(self, context: GroupContext, offsets: OffsetManager) -> None:
        self._context = context
        self._offsets = offsets
        self._running: list[_Deletion] = []

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
        """Groups without members, with all their offsets; each has its own success or error.

        A group whose last batch could not be written is still there, and can be deleted again.
        """
        deletion = _Deletion(self._context, self._offsets, group_ids)
        records = deletion.go_on()
        if deletion.over:
            return Result(deletion.results, records, atomic=False)
        self._running.append(deletion)
        return Result(
            deletion.parked,
            records,
            [self._next(deletion)],
            lambda error: self._fail(deletion, error),
            atomic=False,
        )

    def unloaded(self, error: KafkaError) -> None:
        for deletion in list(self._running):
            self._fail(deletion, error)

    def _next(self, deletion: "_Deletion") -> StartTimer:
        return StartTimer(("delete groups", id(deletion)), 0, lambda _: self._go_on(deletion))

    def _go_on(self, deletion: "_Deletion") -> Result[None]:
        if deletion.parked.done:  # it has failed, or this is its timer's second try
            return Result(None)
        records = deletion.go_on()
        effects: list[Effect] = [self._next(deletion)]
        if deletion.over:
            self._running.remove(deletion)
            effects = [Answer(deletion.parked, deletion.results)]
        return Result(None, records, effects, lambda error: self._fail(deletion, error), atomic=False)

    def _fail(self, deletion: "_Deletion", error: KafkaError) -> Sequence[Effect]:
        if deletion in self._running:
            self._running.remove(deletion)
        if not deletion.parked.done:
            deletion.parked.fail(error)
        return ()


class _Deletion:
    """Groups on their way out, a slice a decision. Each is asked for its leave once, when its turn comes."""

    def __init__(self, context: GroupContext, offsets: OffsetManager, group_ids: Sequence[str]) -> None:
        self._context = context
        self._offsets = offsets
        self._left = deque(group_ids)
        # A group of so many offsets that one slice does not do.
        self._large: _LargeGroup | None = None
        self.results: list[DeletableGroupResult] = []
        self.parked: Pending[list[DeletableGroupResult]] = Pending()

    @property
    def over(self) -> bool:
        return not self._left and self._large is None

    def go_on(self) -> list[CoordinatorRecord]:
        """The records of the next slice."""
        records: list[CoordinatorRecord] = []
        while len(records) < SLICE_RECORDS and not self.over:
            if self._large is None:
                records.extend(self._begin(self._left.popleft()))
            elif self._large.places:
                records.extend(self._large.some(SLICE_RECORDS))
                break
            else:
                records.extend(self._large.end())
                self._large = None
        return records

    def _begin(self, group_id: str) -> list[CoordinatorRecord]:
        result = DeletableGroupResult(group_id=group_id)
        self.results.append(result)
        try:
            group = self._context.group(group_id)
            group.validate_delete()
        except KafkaError as error:
            result.error_code = int(error.code)
            return []
        if self._offsets.count(group_id) > SLICE_RECORDS:
            self._large = _LargeGroup(self._context, self._offsets, group)
            return []
        return [*self._offsets.tombstones_for_group(group_id), *group.tombstones()]


class _LargeGroup:
    """A group that goes with very many offsets.

    Whoever joins or commits between two slices comes after the deletion: what was there before goes all the same,
    and what is new stays.
    """

    def __init__(self, context: GroupContext, offsets: OffsetManager, group: Group) -> None:
        self._context = context
        self._offsets = offsets
        self._group = group
        self._as_of_offset = context.timeline.offset
        self.places = deque(offsets.store.places(group.group_id))

    def some(self, most: int) -> list[CoordinatorRecord]:
        """Tombstones of the next so many offsets."""
        some = [self.places.popleft() for _ in range(min(most, len(self.places)))]
        return self._offsets.tombstones_as_of(self._group.group_id, some, self._as_of_offset)

    def end(self) -> list[CoordinatorRecord]:
        """The group itself, unless it has been used since."""
        group = self._group
        if self._context.groups.get(group.group_id) is not group or self._offsets.count(group.group_id):
            return []
        return list(group.tombstones()) if group.is_empty() else []
