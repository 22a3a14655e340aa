"""Kafka's ConsumerGroup: its members, what they subscribe to, what they shall have and what they have.

Changed by replay alone, as every ModernGroup; what can be computed quickly from its state is computed when somebody
asks. How many members subscribe to what is counted as they come and go.

A member may commit an offset by its epoch, and by the epoch in which it got the partition (KIP-1251).

Owner: the ConsumerGroupManager of one group shard.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Final, NamedTuple, TypeVar

from ottla.coordinator.group.assignors.api import NO_PARTITIONS, Assignment, SubscriptionType
from ottla.coordinator.group.consumer import records
from ottla.coordinator.group.consumer.member import (
    ConsumerGroupMember,
    EpochAssignment,
)
from ottla.coordinator.group.consumer.regex import ResolvedRegularExpression
from ottla.coordinator.group.group import CommitPartitionValidator, GroupType, OffsetExpiration
from ottla.coordinator.group.modern.group import ModernGroup
from ottla.coordinator.java_hash import grown_capacity, hash_order
from ottla.coordinator.shard import CoordinatorRecord
from ottla.coordinator.timeline import Timeline, TimelineDict, TimelineValue
from ottla.metadata.image import ClusterImage
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import Uuid
from ottla.model.java_hash import java_hash_code
from ottla.wire.messages.groups.consumer import (
    ConsumerGroupDescribeResponseAssignment,
    ConsumerGroupDescribeResponseTopicPartitions,
    DescribedGroup,
    Member,
)

PROTOCOL_TYPE: Final = "consumer"
# A commit to a consumer group says the member's epoch since this version of OffsetCommit.
MEMBER_EPOCH_COMMIT_VERSION: Final = 9

K = TypeVar("K")


class SubscriptionCount(NamedTuple):
    """How many members subscribe to a topic by its name, and how many expressions stand for it."""

    by_name: int = 0
    by_regex: int = 0


Counts = dict[str, SubscriptionCount] | TimelineDict[str, SubscriptionCount]


def subscription_type(
    regexes: Mapping[str, int], subscriptions: Mapping[str, SubscriptionCount], members: int
) -> SubscriptionType:
    """Do all members subscribe to the same topics? All by the same names, or all by one expression."""
    counts = subscriptions.values()
    if not regexes:
        same = all(count.by_name == members for count in counts)
    else:
        same = next(iter(regexes.values())) == members and all(
            count.by_regex == 1 and count.by_name == 0 for count in counts
        )
    return SubscriptionType.HOMOGENEOUS if same else SubscriptionType.HETEROGENEOUS


def count_up(counts: "dict[K, int] | TimelineDict[K, int]", key: K | None, step: int) -> None:
    if key is None:
        return
    count = (counts.get(key) or 0) + step
    if count > 0:
        counts[key] = count
    elif key in counts:
        counts.pop(key)


def count_names(
    counts: Counts,
    old: ConsumerGroupMember | None,
    new: ConsumerGroupMember | None,
) -> None:
    before = old.subscribed_topic_names if old else frozenset()
    after = new.subscribed_topic_names if new else frozenset()
    for topic in before - after:
        _subscribe(counts, topic, -1, 0)
    for topic in after - before:
        _subscribe(counts, topic, 1, 0)


def count_regex(
    counts: Counts,
    topics: Iterable[str],
    step: int,
) -> None:
    for topic in topics:
        _subscribe(counts, topic, 0, step)


def _subscribe(
    counts: Counts,
    topic: str,
    names: int,
    regexes: int,
) -> None:
    by_name, by_regex = counts.get(topic) or SubscriptionCount()
    count = SubscriptionCount(by_name + names, by_regex + regexes)
    if count > (0, 0):
        counts[topic] = count
    elif topic in counts:
        counts.pop(topic)


def most_frequent(counts: Mapping[str, int]) -> str | None:
    """The most frequent; of several the one that Java's table has first."""
    names = hash_order(counts, java_hash_code, grown_capacity(len(counts)))
    return max(names, key=lambda name: counts[name], default=None)


def stale(member: ConsumerGroupMember, why: str) -> KafkaError:
    code = ErrorCode.ILLEGAL_GENERATION if member.uses_classic_protocol else ErrorCode.STALE_MEMBER_EPOCH
    return KafkaError(code, f"Member {member.member_id}: {why}.")


def check_commit(member: ConsumerGroupMember, epoch: int, topic: str, topic_id: Uuid, partition: int) -> None:
    assigned_in = member.assignment_epoch(topic_id, partition)
    if assigned_in is None:
        raise stale(member, f"{topic}-{partition} is neither assigned nor to be revoked")
    if epoch < assigned_in:
        raise stale(member, f"{topic}-{partition} was assigned in epoch {assigned_in}, after epoch {epoch}")


class ConsumerGroupState(StrEnum):
    """A group's state, by its name in answers; it follows from the epochs of the group and its members."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


_WITH_MEMBERS: Final = frozenset(
    {ConsumerGroupState.ASSIGNING, ConsumerGroupState.RECONCILING, ConsumerGroupState.STABLE}
)
# One decision may assign and reconcile at once, so a group can be seen to skip a state.
TRANSITIONS: Final[dict[ConsumerGroupState, frozenset[ConsumerGroupState]]] = {
    ConsumerGroupState.EMPTY: _WITH_MEMBERS | {ConsumerGroupState.DEAD},
    **{state: _WITH_MEMBERS | {ConsumerGroupState.EMPTY} for state in _WITH_MEMBERS},
    ConsumerGroupState.DEAD: frozenset(),
}


class ConsumerGroup(ModernGroup[ConsumerGroupMember, Assignment]):
    """A group of the consumer protocol; implements `Group`."""

    def __init__(self, timeline: Timeline, group_id: str) -> None:
        super().__init__(timeline, group_id)
        self._classic_members = TimelineValue(timeline, 0)
        self._has_partition_metadata = TimelineValue(timeline, False)
        self.static_members: TimelineDict[str, str] = TimelineDict(timeline)
        self.subscriptions: TimelineDict[str, SubscriptionCount] = TimelineDict(timeline)
        self.subscribed_regexes: TimelineDict[str, int] = TimelineDict(timeline)
        self.resolved_regexes: TimelineDict[str, ResolvedRegularExpression] = TimelineDict(timeline)
        self._assignors: TimelineDict[str, int] = TimelineDict(timeline)
        self._classic_protocols: TimelineDict[str, int] = TimelineDict(timeline)
        # Who has a partition now, whether it is to keep it or to give it up.
        self._owners: TimelineDict[tuple[Uuid, int], str] = TimelineDict(timeline)

    @property
    def has_partition_metadata(self) -> bool:
        """Has an old broker left the record that the metadata hash has replaced?"""
        return self._has_partition_metadata.value

    # ---- members --------------------------------------------------------------------------------------------

    def static_member(self, instance_id: str | None) -> ConsumerGroupMember | None:
        member_id = None if instance_id is None else self.static_members.get(instance_id)
        return None if member_id is None else self.members.get(member_id)

    def owner(self, topic_id: Uuid, partition: int) -> str | None:
        return self._owners.get((topic_id, partition))

    def target_of(self, member_id: str, instance_id: str | None = None) -> Assignment:
        """What a member shall have; a static one what its instance had, under whatever member id."""
        if instance_id is not None:
            member_id = self.static_members.get(instance_id) or ""
        return self.target.get(member_id) or NO_PARTITIONS

    def waits_for_others(self, member: ConsumerGroupMember) -> bool:
        """Does somebody else still have a partition that the member shall have?"""
        for topic_id, partitions in self.target_of(member.member_id).items():
            mine = member.assigned.get(topic_id, {})
            if any(p not in mine and self.owner(topic_id, p) is not None for p in partitions):
                return True
        return False

    # ---- members of the classic protocol --------------------------------------------------------------------

    @property
    def classic_members(self) -> int:
        return self._classic_members.value

    def supports_classic_protocols(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Is there a protocol among these that all classic members know?"""
        if protocol_type != PROTOCOL_TYPE:
            return False
        return any((self._classic_protocols.get(name) or 0) == self.classic_members for name in names)

    def all_classic_without(self, leaving: Iterable[ConsumerGroupMember]) -> bool:
        """Do all members but these speak the classic protocol?"""
        gone = list(leaving)
        classic = self.classic_members - sum(member.uses_classic_protocol for member in gone)
        return classic == len(self.members) - len(gone)

    # ---- what follows from a member's change ----------------------------------------------------------------

    def subscriptions_with(
        self, old: ConsumerGroupMember | None, new: ConsumerGroupMember | None
    ) -> dict[str, SubscriptionCount]:
        """What the group subscribes to once the new member stands for the old one."""
        counts = dict(self.subscriptions.items())
        count_names(counts, old, new)
        regex = None if old is None else old.regex
        last = regex is not None and self.subscribed_regexes.get(regex) == 1
        if last and (new is None or new.regex != regex):
            count_regex(counts, self._topics_of(regex), -1)
        return counts

    def subscriptions_without(
        self, leaving: Iterable[ConsumerGroupMember], regexes: Iterable[str]
    ) -> dict[str, SubscriptionCount]:
        """What the group subscribes to without these members and these expressions."""
        counts = dict(self.subscriptions.items())
        for member in leaving:
            count_names(counts, member, None)
        for regex in regexes:
            count_regex(counts, self._topics_of(regex), -1)
        return counts

    def regexes_with(self, old: ConsumerGroupMember, new: ConsumerGroupMember) -> dict[str, int]:
        """How many members subscribe to each expression once the new member stands for the old one."""
        counts = dict(self.subscribed_regexes.items())
        if old.regex != new.regex:
            count_up(counts, old.regex, -1)
            count_up(counts, new.regex, 1)
        return counts

    def preferred_assignor(
        self, old: ConsumerGroupMember | None = None, new: ConsumerGroupMember | None = None
    ) -> str | None:
        """The assignor that most members ask for; None if none asks for any."""
        counts = dict(self._assignors.items())
        count_up(counts, old.server_assignor if old else None, -1)
        count_up(counts, new.server_assignor if new else None, 1)
        return most_frequent(counts)

    def committed_assignor(self) -> str | None:
        return most_frequent(self._assignors.committed_view())

    @property
    def subscription_type(self) -> SubscriptionType:
        return subscription_type(
            dict(self.subscribed_regexes.items()), dict(self.subscriptions.items()), len(self.members)
        )

    def _topics_of(self, regex: str | None) -> frozenset[str]:
        resolved = None if regex is None else self.resolved_regexes.get(regex)
        return frozenset() if resolved is None else resolved.topics

    def topics_of(self, member: ConsumerGroupMember) -> frozenset[str]:
        """The topics a member subscribes to by name or by an expression that is resolved."""
        return member.subscribed_topic_names | self._topics_of(member.regex)

    # ---- replay ---------------------------------------------------------------------------------------------

    def set_has_partition_metadata(self, there: bool) -> None:
        self._has_partition_metadata.value = there

    def put_member(self, member: ConsumerGroupMember) -> None:
        old = self.members.get(member.member_id)
        self.members[member.member_id] = member
        self._recount(member.member_id, old, member)
        if member.instance_id is not None and self.static_members.get(member.instance_id) != member.member_id:
            self.static_members[member.instance_id] = member.member_id

    def remove_member(self, member_id: str) -> None:
        old = self.members.pop(member_id)
        if old is None:
            return
        self._recount(member_id, old, None)
        if old.instance_id is not None and self.static_members.get(old.instance_id) == member_id:
            self.static_members.pop(old.instance_id)

    def _recount(
        self, member_id: str, old: ConsumerGroupMember | None, new: ConsumerGroupMember | None
    ) -> None:
        before = old or _NOBODY
        after = new or _NOBODY
        if before.subscribed_topic_names != after.subscribed_topic_names:
            count_names(self.subscriptions, old, new)
        if before.regex != after.regex:
            count_up(self.subscribed_regexes, before.regex, -1)
            count_up(self.subscribed_regexes, after.regex, 1)
        if before.server_assignor != after.server_assignor:
            count_up(self._assignors, before.server_assignor, -1)
            count_up(self._assignors, after.server_assignor, 1)
        if before.classic != after.classic:
            self._recount_classic(before, after)
        self._move_owned(member_id, before, after)

    def _recount_classic(self, before: ConsumerGroupMember, after: ConsumerGroupMember) -> None:
        if before.uses_classic_protocol != after.uses_classic_protocol:
            self._classic_members.value += 1 if after.uses_classic_protocol else -1
        for member, step in ((before, -1), (after, 1)):
            for protocol in member.classic.supported_protocols if member.classic else ():
                count_up(self._classic_protocols, protocol.name, step)

    def _move_owned(self, member_id: str, before: ConsumerGroupMember, after: ConsumerGroupMember) -> None:
        """On load, what another member had once may come after what somebody else has since: the newest wins."""
        if before.assigned == after.assigned and before.pending_revocation == after.pending_revocation:
            return
        had = _owned(before)
        has = _owned(after)
        for partition in had - has:
            if self._owners.get(partition) == member_id:
                self._owners.pop(partition)
        for partition in has - had:
            self._owners[partition] = member_id

    def put_regex(self, regex: str, resolved: ResolvedRegularExpression) -> None:
        self.remove_regex(regex)
        self.resolved_regexes[regex] = resolved
        count_regex(self.subscriptions, resolved.topics, 1)

    def remove_regex(self, regex: str) -> None:
        old = self.resolved_regexes.pop(regex)
        if old is not None:
            count_regex(self.subscriptions, old.topics, -1)

    # ---- what every group answers ---------------------------------------------------------------------------

    @property
    def type(self) -> GroupType:
        return GroupType.CONSUMER

    @property
    def protocol_type(self) -> str:
        return PROTOCOL_TYPE

    def state(self, *, committed: bool) -> ConsumerGroupState:
        epoch, target_epoch, members = self._epochs_and_members(committed=committed)
        if not members:
            return ConsumerGroupState.EMPTY
        if epoch > target_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(member.is_reconciled_to(target_epoch) for member in members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    def state_name(self, *, committed: bool = True) -> str:
        return self.state(committed=committed)

    def validate_offset_commit(
        self, member_id: str, group_instance_id: str | None, epoch: int, *, transactional: bool, version: int
    ) -> CommitPartitionValidator | None:
        """May the member commit? A check for each partition if its epoch is not the newest."""
        if epoch < 0 and self.is_empty():
            return None
        if transactional and epoch == -1 and not member_id and group_instance_id is None:
            return None
        member = self.member(member_id)
        if not transactional and not member.uses_classic_protocol and version < MEMBER_EPOCH_COMMIT_VERSION:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                "Members of the consumer protocol commit with version 9 of OffsetCommit or a newer one.",
            )
        if epoch == member.member_epoch:
            return None
        if epoch > member.member_epoch:
            raise stale(member, f"epoch {epoch} is newer than the member's own, {member.member_epoch}")
        return lambda topic, topic_id, partition: check_commit(member, epoch, topic, topic_id, partition)

    def validate_offset_fetch(self, member_id: str | None, epoch: int) -> None:
        if member_id is None and epoch < 0:
            return
        member = self.committed_member(member_id)
        if epoch != member.member_epoch:
            raise stale(member, f"epoch {epoch} is not the member's own, {member.member_epoch}")

    def validate_offset_delete(self) -> None:
        """Offsets of topics that nobody subscribes to may always be deleted."""

    def validate_delete(self) -> None:
        if not self.is_empty():
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, "The group has members.")

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self.subscriptions

    def offset_expiration(self) -> OffsetExpiration | None:
        return OffsetExpiration()

    def tombstones(self) -> Iterator[CoordinatorRecord]:
        return self.tombstones_with({})

    def tombstones_with(self, renamed: Mapping[str, str]) -> Iterator[CoordinatorRecord]:
        """The records that delete the group; of members that were replaced before, under their new ids."""
        ids = [renamed.get(member_id, member_id) for member_id in self.members]
        yield from records.removed_members(self.group_id, ids)
        for regex in self.resolved_regexes:
            yield records.regular_expression_tombstone(self.group_id, regex)
        yield records.partition_metadata_tombstone(self.group_id)
        yield records.group_epoch_tombstone(self.group_id)


_NOBODY: Final = ConsumerGroupMember("")


def _owned(member: ConsumerGroupMember) -> set[tuple[Uuid, int]]:
    return set(_partitions(member.assigned)) | set(_partitions(member.pending_revocation))


def _partitions(assignment: EpochAssignment) -> Iterator[tuple[Uuid, int]]:
    for topic_id, partitions in assignment.items():
        for partition in partitions:
            yield topic_id, partition


# ---- ConsumerGroupDescribe --------------------------------------------------------------------------------------


_CLASSIC, _CONSUMER = 0, 1


def describe(
    group: ConsumerGroup, default_assignor: str, image: ClusterImage
) -> tuple[DescribedGroup, Iterator[Member]]:
    """The group, and its members to be put in, as they are committed now.

    A group may have thousands of members, so they are shown one by one: whoever asks yields to the loop in between.
    """
    epoch, target_epoch = group.committed_epochs()
    described = DescribedGroup(
        group_id=group.group_id,
        group_state=group.state_name(committed=True),
        group_epoch=epoch,
        assignment_epoch=target_epoch,
        assignor_name=group.committed_assignor() or default_assignor,
        members=[],
    )
    members = list(group.members.committed_view().values())
    targets = [group.target.committed(member.member_id) or NO_PARTITIONS for member in members]
    return described, (_member(m, t, image) for m, t in zip(members, targets, strict=True))


def _member(member: ConsumerGroupMember, target: Assignment, image: ClusterImage) -> Member:
    return Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.subscribed_topic_names),
        subscribed_topic_regex=member.subscribed_topic_regex,
        assignment=_assignment(_held(member), image),
        target_assignment=_assignment(target, image),
        member_type=_CLASSIC if member.uses_classic_protocol else _CONSUMER,
    )


def _held(member: ConsumerGroupMember) -> Mapping[Uuid, Collection[int]]:
    """What it must still give up it still has."""
    held: dict[Uuid, set[int]] = {t: set(partitions) for t, partitions in member.assigned.items()}
    for topic_id, partitions in member.pending_revocation.items():
        held.setdefault(topic_id, set()).update(partitions)
    return held


def _assignment(
    partitions: Mapping[Uuid, Collection[int]], image: ClusterImage
) -> ConsumerGroupDescribeResponseAssignment:
    """Topics that are gone are left out."""
    named = ((topic_id, image.topic_by_id(topic_id), numbers) for topic_id, numbers in partitions.items())
    return ConsumerGroupDescribeResponseAssignment(
        topic_partitions=[
            ConsumerGroupDescribeResponseTopicPartitions(
                topic_id=topic_id, topic_name=topic.name, partitions=sorted(numbers)
            )
            for topic_id, topic, numbers in named
            if topic is not None
        ]
    )
