"""A classic group: its members and what they agreed on, who waits for whom.

Hard is only what the group's last record says (`stored`), and that the group is there at all; the rest changes as
the members come and go, without a record, and a new coordinator begins again from `stored`.

Rules: the counts (members that wait, members that know a protocol) change only by the methods here.

Owner: the ClassicManager of a shard.
"""

from collections.abc import Iterator
from typing import Final

from ottla.coordinator.group.classic.member import NEVER, Member, Protocols, size_of
from ottla.coordinator.group.classic.protocols import CONSUMER_PROTOCOL_TYPE, most_votes, subscribed_topics
from ottla.coordinator.group.classic.state import (
    COMPLETING_REBALANCE,
    DEAD,
    EMPTY,
    PREPARING_REBALANCE,
    STABLE,
    TRANSITIONS,
    ClassicGroupState,
)
from ottla.coordinator.group.group import GroupType, OffsetExpiration
from ottla.coordinator.result import CoordinatorRecord
from ottla.coordinator.timeline import Timeline, TimelineValue
from ottla.model.errors import ErrorCode, KafkaError
from ottla.wire.messages.offsets_log import GroupMetadataKey, GroupMetadataValue

_HAS_MEMBERS: Final = (STABLE, PREPARING_REBALANCE, COMPLETING_REBALANCE)


class ClassicGroup:
    """See the module. Implements `Group`."""

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
        # None while it is not known, or not told in the consumers' way.
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

    @property
    def is_simple(self) -> bool:
        """Is it there only for the offsets of a consumer that manages its partitions itself?"""
        return self.protocol_type_or_none is None and self.state is EMPTY and not self.pending_join

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
