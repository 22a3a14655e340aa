"""Kafka's ClassicGroup: its members and what they agreed on, who waits for whom; its record; its description.

Hard is only what the group's last record says (`stored`), and that the group is there at all; the rest changes as
the members come and go, without a record, and a new coordinator begins again from `stored`.

Everything about a member is soft: a new coordinator knows only what the last record of the group says.

Rules: the counts (members that wait, members that know a protocol) change only by the methods here.

Owner: the ClassicGroupManager of a shard.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from ottla.coordinator.group.group import Group, GroupType, OffsetExpiration
from ottla.coordinator.java_hash import grown_capacity, hash_order
from ottla.coordinator.shard import CoordinatorRecord
from ottla.coordinator.timeline import Timeline, TimelineValue
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.java_hash import java_hash_code
from ottla.model.pending import Pending
from ottla.wire.codec import decode
from ottla.wire.messages.groups.classic import (
    DescribedGroup,
    DescribedGroupMember,
    JoinGroupResponse,
    SyncGroupResponse,
)
from ottla.wire.messages.groups.consumer_protocol import ConsumerProtocolSubscription
from ottla.wire.messages.logs.offsets import GroupMetadataKey, GroupMetadataValue, MemberMetadata

CONSUMER_PROTOCOL_TYPE: Final = "consumer"
_VERSION: Final = struct.Struct(">h")
NO_ASSIGNMENT: Final = b""
NEVER: Final = float("inf")

# The assignors a member knows, the one it likes best first, each with its subscription in that assignor's terms.
Protocols = tuple[tuple[str, bytes], ...]
# What holding one of them takes, beside its bytes.
PROTOCOL_OVERHEAD_BYTES: Final = 200


class ClassicGroupState(StrEnum):
    """By the names in answers to ListGroups and DescribeGroups."""

    # No members; there may be offsets.
    EMPTY = "Empty"
    # Members are asked to join again, and wait for each other.
    PREPARING_REBALANCE = "PreparingRebalance"
    # A generation is formed; its leader has yet to say who gets what.
    COMPLETING_REBALANCE = "CompletingRebalance"
    # Everybody has, or can ask for, an assignment.
    STABLE = "Stable"
    # Coordinated here no more.
    DEAD = "Dead"


EMPTY: Final = ClassicGroupState.EMPTY
PREPARING_REBALANCE: Final = ClassicGroupState.PREPARING_REBALANCE
COMPLETING_REBALANCE: Final = ClassicGroupState.COMPLETING_REBALANCE
STABLE: Final = ClassicGroupState.STABLE
DEAD: Final = ClassicGroupState.DEAD

TRANSITIONS: Final[dict[ClassicGroupState, frozenset[ClassicGroupState]]] = {
    EMPTY: frozenset({PREPARING_REBALANCE, DEAD}),
    PREPARING_REBALANCE: frozenset({EMPTY, COMPLETING_REBALANCE, DEAD}),
    COMPLETING_REBALANCE: frozenset({STABLE, PREPARING_REBALANCE, DEAD}),
    STABLE: frozenset({PREPARING_REBALANCE, DEAD}),
    DEAD: frozenset({DEAD}),
}


def size_of(protocols: Protocols) -> int:
    """What holding them takes."""
    return sum(len(name) + len(metadata) + PROTOCOL_OVERHEAD_BYTES for name, metadata in protocols)


@dataclass(slots=True, eq=False)
class Member:
    """Kafka's ClassicGroupMember: what it said of itself, what it was assigned, what it waits for."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    assignment: bytes = NO_ASSIGNMENT
    # Requests that are parked until the others have joined, until the leader has assigned.
    awaiting_join: Pending[JoinGroupResponse] | None = None
    awaiting_sync: Pending[SyncGroupResponse] | None = None
    # Has it never been in a generation? Its client may be gone while its first join is parked.
    is_new: bool = False
    # When it counts as gone unless it is heard of before.
    deadline_ms: float = NEVER
    # By name, for looking up.
    metadata: Mapping[str, bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.metadata = dict(self.protocols)

    @property
    def is_static(self) -> bool:
        return self.group_instance_id is not None

    @property
    def excused(self) -> bool:
        """Need it not send heartbeats? It cannot while it waits; but a new one must not wait for ever."""
        return not self.is_new and (self.awaiting_join is not None or self.awaiting_sync is not None)

    def set_protocols(self, protocols: Protocols) -> None:
        self.protocols = protocols
        self.metadata = dict(protocols)


def most_votes(votes: Iterable[str]) -> str:
    """The protocol that most members like best; of several, the one that Kafka's hash table holds first."""
    counts: dict[str, int] = {}
    for name in votes:
        counts[name] = counts.get(name, 0) + 1
    most = max(counts.values())
    winners = [name for name, count in counts.items() if count == most]
    return hash_order(winners, java_hash_code, grown_capacity(len(counts)))[0]


def subscribed_topics(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """The topics that consumers subscribe to; None if one of them says it in a way that is not understood."""
    topics: set[str] = set()
    try:
        for subscription in subscriptions:
            if _VERSION.unpack_from(subscription)[0] < 0:
                return None
            # Every version of a subscription begins as version 0 does.
            parsed, _ = decode(ConsumerProtocolSubscription, subscription, 0, _VERSION.size)
            topics.update(parsed.topics)
    except (KafkaError, struct.error):
        return None
    return frozenset(topics)


_HAS_MEMBERS: Final = (STABLE, PREPARING_REBALANCE, COMPLETING_REBALANCE)


class ClassicGroup:
    """A group of the classic protocol; implements `Group`."""

    __slots__ = (
        "_known",
        "awaiting_join_count",
        "expiry_due_ms",
        "generation_id",
        "group_id",
        "leader_id",
        "members",
        "new_member_added",
        "pending_join",
        "pending_sync",
        "previous_state",
        "protocol_bytes",
        "protocol_name",
        "protocol_type_or_none",
        "state",
        "state_timestamp_ms",
        "static_members",
        "stored",
        "subscribed_topics",
    )

    type = GroupType.CLASSIC

    def __init__(self, timeline: Timeline, group_id: str, now_ms: int | None = None) -> None:
        self.group_id = group_id
        self.stored: TimelineValue[GroupMetadataValue | None] = TimelineValue(timeline, None)
        self.state = EMPTY
        self.previous_state = DEAD
        # Unknown for a group that was last written by a broker of long ago.
        self.state_timestamp_ms = now_ms
        self.generation_id = 0
        self.protocol_type_or_none: str | None = None
        self.protocol_name: str | None = None
        self.leader_id: str | None = None
        # None while it is not known, or if a member's metadata is not a consumer's subscription.
        self.subscribed_topics: frozenset[str] | None = None
        self.members: dict[str, Member] = {}
        self.static_members: dict[str, str] = {}
        # Ids that were given out (KIP-394) and not used yet, each until when it can be.
        self.pending_join: dict[str, float] = {}
        self.pending_sync: set[str] = set()
        self.awaiting_join_count = 0
        self.new_member_added = False
        # How many members know each protocol.
        self._known: dict[str, int] = {}
        # What the protocols of all members take.
        self.protocol_bytes = 0
        # When the timer goes off that looks for members which are gone.
        self.expiry_due_ms = NEVER

    # ---- the members --------------------------------------------------------------------------------------

    def add(self, member: Member) -> None:
        """Take a member in; it need not be waiting."""
        assert member.group_instance_id not in self.static_members
        self.members[member.member_id] = member
        if member.group_instance_id is not None:
            self.static_members[member.group_instance_id] = member.member_id
        if self.leader_id is None:
            self.leader_id = member.member_id
        self._count_protocols(member, 1)
        if member.awaiting_join is not None:
            self.awaiting_join_count += 1
        self.pending_join.pop(member.member_id, None)

    def remove(self, member_id: str) -> None:
        """Forget a member, or an id that was given out."""
        member = self.members.pop(member_id, None)
        if member is not None:
            self._count_protocols(member, -1)
            if member.awaiting_join is not None:
                self.awaiting_join_count -= 1
            if member.group_instance_id is not None:
                self.static_members.pop(member.group_instance_id, None)
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)
        self.pending_join.pop(member_id, None)
        self.pending_sync.discard(member_id)

    def rename(self, member: Member, new_id: str) -> Member:
        """A static member is back under a new id (KIP-345): a member that is as the old one was, at its place."""
        renamed = Member(
            new_id,
            member.group_instance_id,
            member.client_id,
            member.client_host,
            member.rebalance_timeout_ms,
            member.session_timeout_ms,
            member.protocols,
            member.assignment,
        )
        assert member.group_instance_id is not None
        assert member.awaiting_join is None
        del self.members[member.member_id]
        self.members[new_id] = renamed
        self.static_members[member.group_instance_id] = new_id
        if self.leader_id == member.member_id:
            self.leader_id = new_id
        return renamed

    def set_protocols(self, member: Member, protocols: Protocols) -> None:
        self._count_protocols(member, -1)
        member.set_protocols(protocols)
        self._count_protocols(member, 1)

    def _count_protocols(self, member: Member, by: int) -> None:
        self.protocol_bytes += by * size_of(member.protocols)
        for name in member.metadata:
            self._known[name] = self._known.get(name, 0) + by
            if not self._known[name]:
                del self._known[name]

    def all_joined(self) -> bool:
        """Does everybody wait who is a member or was given an id?"""
        return len(self.members) == self.awaiting_join_count and not self.pending_join

    def rebalance_timeout_ms(self) -> int:
        """How long the slowest member may take to join again."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def validate_member(self, member_id: str, group_instance_id: str | None) -> None:
        """Is it one, and is the instance not somebody else by now?"""
        if group_instance_id is not None:
            current = self.static_members.get(group_instance_id)
            if current is None:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"nobody is instance {group_instance_id}")
            if current != member_id:
                raise KafkaError(
                    ErrorCode.FENCED_INSTANCE_ID, f"{current} is instance {group_instance_id} by now"
                )
        if member_id not in self.members:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id} is no member of {self.group_id}")

    # ---- what they agree on -------------------------------------------------------------------------------

    def become(self, state: ClassicGroupState, now_ms: int) -> None:
        assert state in TRANSITIONS[self.state], f"{self.state} to {state}"
        self.previous_state = self.state
        self.state = state
        self.state_timestamp_ms = now_ms

    @property
    def can_rebalance(self) -> bool:
        return PREPARING_REBALANCE in TRANSITIONS[self.state]

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Does a member that knows these have one in common with everybody else?"""
        if self.state is EMPTY:
            return bool(protocol_type) and bool(protocols)
        if protocol_type != self.protocol_type_or_none:
            return False
        everybody = len(self.members)
        return any(self._known.get(name, 0) == everybody for name, _ in protocols)

    def choose_protocol(self) -> str:
        """Every member votes for the first of its protocols that everybody knows."""
        everybody = len(self.members)
        candidates = {name for name, count in self._known.items() if count == everybody}
        return most_votes(
            next(name for name in member.metadata if name in candidates) for member in self.members.values()
        )

    def next_generation(self, now_ms: int) -> None:
        """All who will come have come."""
        self.generation_id += 1
        self.protocol_name = self.choose_protocol() if self.members else None
        self.note_subscriptions()
        self.become(COMPLETING_REBALANCE if self.members else EMPTY, now_ms)
        self.pending_sync.clear()

    def note_subscriptions(self) -> None:
        """Learn the topics, if the members are consumers and it can be understood."""
        if not self.uses_consumer_protocol:
            self.subscribed_topics = None
        elif not self.members:
            self.subscribed_topics = frozenset()
        elif self.protocol_name is None:
            self.subscribed_topics = None
        else:
            name = self.protocol_name
            self.subscribed_topics = subscribed_topics(m.metadata[name] for m in self.members.values())

    @property
    def uses_consumer_protocol(self) -> bool:
        return self.protocol_type_or_none == CONSUMER_PROTOCOL_TYPE

    # ---- as every group -----------------------------------------------------------------------------------

    @property
    def protocol_type(self) -> str:
        return self.protocol_type_or_none or ""

    def state_name(self, *, committed: bool = True) -> str:
        return self.state.value

    def is_empty(self) -> bool:
        return self.state is EMPTY

    def validate_offset_commit(
        self, member_id: str, group_instance_id: str | None, epoch: int, *, transactional: bool, version: int
    ) -> None:
        if epoch < 0 and self.state is EMPTY:
            return  # an administrator, or a consumer that manages its partitions itself
        if epoch >= 0 or member_id or group_instance_id is not None:
            self.validate_member(member_id, group_instance_id)
            if epoch != self.generation_id:
                raise KafkaError(
                    ErrorCode.ILLEGAL_GENERATION, f"generation {epoch} is not {self.generation_id}"
                )
        elif not transactional:
            # Old versions of TxnOffsetCommit do not say whose offsets these are.
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"group {self.group_id} has members")
        if not transactional and self.state is COMPLETING_REBALANCE:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, f"group {self.group_id} rebalances")

    def validate_offset_fetch(self, member_id: str | None, epoch: int) -> None:
        """Anybody may read the offsets of a classic group."""

    def validate_offset_delete(self) -> None:
        if self.state in _HAS_MEMBERS and not self.uses_consumer_protocol:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, "The group is not empty.")

    def validate_delete(self) -> None:
        if self.state in _HAS_MEMBERS:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, "The group is not empty.")

    def is_subscribed_to(self, topic: str) -> bool:
        if self.subscribed_topics is None:
            return self.uses_consumer_protocol
        return topic in self.subscribed_topics

    def offset_expiration(self) -> OffsetExpiration | None:
        if self.protocol_type_or_none is None:
            return OffsetExpiration()
        if self.state is EMPTY:
            return OffsetExpiration(self.state_timestamp_ms)
        if self.uses_consumer_protocol and self.subscribed_topics is not None and self.state is STABLE:
            return OffsetExpiration()
        return None

    def tombstones(self) -> Iterator[CoordinatorRecord]:
        yield CoordinatorRecord(GroupMetadataKey(group=self.group_id), None)


# ---- its record -------------------------------------------------------------------------------------------------


_UNKNOWN = -1


def group_record(group: ClassicGroup, assignments: dict[str, bytes]) -> CoordinatorRecord:
    """The group as it is, with what each member is assigned."""
    value = GroupMetadataValue(
        protocol_type=group.protocol_type,
        generation=group.generation_id,
        protocol=group.protocol_name,
        leader=group.leader_id,
        current_state_timestamp=_timestamp(group),
        members=[
            _member_row(group, member, assignments.get(member.member_id, NO_ASSIGNMENT))
            for member in group.members.values()
        ],
    )
    return CoordinatorRecord(GroupMetadataKey(group=group.group_id), value)


def _member_row(group: ClassicGroup, member: Member, assignment: bytes) -> MemberMetadata:
    assert group.protocol_name is not None, "members of a group without a protocol cannot be written"
    return MemberMetadata(
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout=member.rebalance_timeout_ms,
        session_timeout=member.session_timeout_ms,
        subscription=member.metadata[group.protocol_name],
        assignment=assignment,
    )


def new_group_record(group: ClassicGroup) -> CoordinatorRecord:
    """That the group is there; nobody has joined yet."""
    value = GroupMetadataValue(
        protocol_type="",
        generation=0,
        protocol=None,
        leader=None,
        current_state_timestamp=_timestamp(group),
        members=[],
    )
    return CoordinatorRecord(GroupMetadataKey(group=group.group_id), value)


def _timestamp(group: ClassicGroup) -> int:
    return _UNKNOWN if group.state_timestamp_ms is None else group.state_timestamp_ms


def restore(group: ClassicGroup, value: GroupMetadataValue) -> None:
    """Begin again from what the log says: the members are there, and have to show that they are alive."""
    group.generation_id = value.generation
    group.protocol_type_or_none = value.protocol_type or None
    group.protocol_name = value.protocol
    group.leader_id = value.leader
    timestamp = value.current_state_timestamp
    group.state_timestamp_ms = None if timestamp == _UNKNOWN else timestamp
    for row in value.members:
        group.add(_restored_member(value, row))
    if value.members:
        group.state = STABLE
    group.note_subscriptions()


def _restored_member(value: GroupMetadataValue, row: MemberMetadata) -> Member:
    no_rebalance_timeout = row.rebalance_timeout == _UNKNOWN  # before version 1
    return Member(
        row.member_id,
        row.group_instance_id,
        row.client_id,
        row.client_host,
        row.session_timeout if no_rebalance_timeout else row.rebalance_timeout,
        row.session_timeout,
        ((value.protocol or "", row.subscription),),
        row.assignment,
    )


# ---- DescribeGroups ---------------------------------------------------------------------------------------------


# Before, a group that is not there is described as dead, without an error (KIP-1043).
FIRST_NOT_FOUND_VERSION = 6


def describe(group_id: str, group: Group | None, version: int) -> DescribedGroup:
    """What is committed of it; dead if there is no such classic group."""
    if not isinstance(group, ClassicGroup):
        why = "not found." if group is None else "is not a classic group."
        return _not_there(group_id, f"Group {group_id} {why}", version)
    stable = group.state is STABLE
    return DescribedGroup(
        group_id=group_id,
        group_state=group.state_name(),
        protocol_type=group.protocol_type,
        protocol_data=(group.protocol_name or "") if stable else "",
        members=[_member(group, member, stable) for member in group.members.values()],
    )


def _not_there(group_id: str, message: str, version: int) -> DescribedGroup:
    described = DescribedGroup(
        group_id=group_id, group_state=DEAD.value, protocol_type="", protocol_data="", members=[]
    )
    if version >= FIRST_NOT_FOUND_VERSION:
        described.error_code = int(ErrorCode.GROUP_ID_NOT_FOUND)
        described.error_message = message
    return described


def _member(group: ClassicGroup, member: Member, stable: bool) -> DescribedGroupMember:
    return DescribedGroupMember(
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=member.metadata[group.protocol_name] if stable and group.protocol_name else b"",
        member_assignment=member.assignment,
    )
