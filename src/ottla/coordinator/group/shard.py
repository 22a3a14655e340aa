"""Kafka's GroupCoordinatorShard: the state machine of one partition of __consumer_offsets.

It puts the managers together, one for each kind of group and one for the offsets of all of them: a record goes to the
manager whose key it has, an event goes to all of them. What concerns groups whatever their kind is decided here:
listing them, deleting them.

Owner: a CoordinatorContext of the group coordinator's runtime.
"""

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

from ottla.coordinator.group.classic.manager import ClassicGroupManager
from ottla.coordinator.group.consumer.manager import ConsumerGroupManager
from ottla.coordinator.group.context import GroupContext, Manager, Replay
from ottla.coordinator.group.group import Group, GroupType
from ottla.coordinator.group.offsets.manager import OffsetMetadataManager
from ottla.coordinator.group.share.manager import ShareGroupManager
from ottla.coordinator.group.streams.manager import StreamsGroupManager
from ottla.coordinator.shard import Answer, CoordinatorRecord, CoordinatorResult, Effect, StartTimer
from ottla.metadata.delta import Delta
from ottla.metadata.image import ClusterImage
from ottla.model.errors import KafkaError
from ottla.model.pending import Pending
from ottla.wire.messages.groups.classic import DeletableGroupResult, ListedGroup
from ottla.wire.messages.logs.offsets import OffsetCommitKey

# Records of a deletion in one decision: some milliseconds.
SLICE_RECORDS: Final = 300
_TYPES = {kind.value: kind for kind in GroupType}
# What a request calls the state, where that is not its name in small letters.
_FILTER_NAMES = {"NotReady": "not_ready"}


class GroupCoordinatorShard:
    """All groups of one partition, and their offsets."""

    def __init__(self, context: GroupContext) -> None:
        self.context = context
        self.classic = ClassicGroupManager(context)
        self.consumer = ConsumerGroupManager(context, self.classic)
        self.share = ShareGroupManager(context)
        self.streams = StreamsGroupManager(context)
        self.offsets = OffsetMetadataManager(context, self.classic)
        # The short way of a load.
        self.replay_bytes = self.offsets.loader.replay
        # Deletions that take more than one decision.
        self._deletions: list[_Deletion] = []
        self._managers: list[Manager] = [
            self.offsets,
            self.classic,
            self.consumer,
            self.share,
            self.streams,
        ]
        self._replays: dict[type[Any], Replay] = {}
        for manager in self._managers:
            self._replays.update(manager.replays())

    # ---- listing and deleting groups ----------------------------------------------------------------------

    def list_groups(self, states: Collection[str], types: Collection[str]) -> list[ListedGroup]:
        """Those in one of these states (KIP-518) and of one of these types (KIP-848); of all, if none is said.

        States compare without regard to case and blanks around them; a type that does not exist fits no group.
        """
        wanted_states = {state.lower().strip() for state in states}
        wanted_types = {_TYPES.get(kind.lower()) for kind in types}
        listed = []
        for group in self.context.groups.committed_view().values():
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

    def delete_groups(self, group_ids: Sequence[str]) -> CoordinatorResult[list[DeletableGroupResult]]:
        """Groups without members, with all their offsets; each has its own success or error.

        A group whose last batch could not be written is still there, and can be deleted again.
        """
        deletion = _Deletion(self.context, self.offsets, group_ids)
        records = deletion.next_records()
        if deletion.over:
            return CoordinatorResult(deletion.results, records, atomic=False)
        self._deletions.append(deletion)
        return CoordinatorResult(
            deletion.parked,
            records,
            [self._next_slice(deletion)],
            lambda error: self._fail_deletion(deletion, error),
            atomic=False,
        )

    def _next_slice(self, deletion: "_Deletion") -> StartTimer:
        return StartTimer(("delete groups", id(deletion)), 0, lambda _: self._continue_deletion(deletion))

    def _continue_deletion(self, deletion: "_Deletion") -> CoordinatorResult[None]:
        if deletion not in self._deletions:  # it has failed, or this is its timer's second try
            return CoordinatorResult(None)
        records = deletion.next_records()
        effects: list[Effect] = [self._next_slice(deletion)]
        if deletion.over:
            self._deletions.remove(deletion)
            effects = [Answer(deletion.parked, deletion.results)]
        return CoordinatorResult(
            None, records, effects, lambda error: self._fail_deletion(deletion, error), atomic=False
        )

    def _fail_deletion(self, deletion: "_Deletion", error: KafkaError) -> Sequence[Effect]:
        if deletion in self._deletions:
            self._deletions.remove(deletion)
        if not deletion.parked.done:
            deletion.parked.fail(error)
        return ()

    # ---- replay and life ----------------------------------------------------------------------------------

    def replay(self, record: CoordinatorRecord, producer_id: int, producer_epoch: int) -> None:
        key = record.key
        if type(key) is OffsetCommitKey and producer_id >= 0:
            self.offsets.replay_transactional(key, record.value, producer_id)
            return
        self._replays[type(key)](key, record.value)

    def replay_end_transaction(self, producer_id: int, producer_epoch: int, committed: bool) -> None:
        self.offsets.replay_end_transaction(producer_id, committed)

    def on_skipped(self, key: Any | None, what: str) -> None:
        self.context.skipped.add(key, what)

    def on_loaded(self, image: ClusterImage, now_ms: int) -> Iterable[Effect]:
        self.context.image = image
        return [effect for manager in self._managers for effect in manager.on_loaded(now_ms)]

    def on_image(self, image: ClusterImage, delta: Delta, now_ms: int) -> Iterable[Effect]:
        self.context.image = image
        return [effect for manager in self._managers for effect in manager.on_image(delta, now_ms)]

    def on_unloaded(self, error: KafkaError) -> None:
        for manager in self._managers:
            manager.on_unloaded(error)
        for deletion in list(self._deletions):
            self._fail_deletion(deletion, error)


class _Deletion:
    """Groups on their way out, a slice a decision. Each is asked for its leave once, when its turn comes."""

    def __init__(
        self, context: GroupContext, offsets: OffsetMetadataManager, group_ids: Sequence[str]
    ) -> None:
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

    def next_records(self) -> list[CoordinatorRecord]:
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

    def __init__(self, context: GroupContext, offsets: OffsetMetadataManager, group: Group) -> None:
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
