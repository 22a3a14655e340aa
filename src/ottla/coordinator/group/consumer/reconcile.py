"""One step of a member towards its target assignment, without ever two members having the same partition (KIP-848).

A member first gives up what it shall not have and stays in its epoch until it says that it has; then it goes to the
target's epoch and gets what is free; what others still have it gets when they have given it up.

Pure: the member, what it shall have and what it says it has go in, the member after the step comes out.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from ottla.coordinator.group.assignors.api import Assignment
from ottla.coordinator.group.consumer.member import (
    NOTHING,
    ConsumerGroupMember,
    EpochAssignment,
    MemberState,
)
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import Uuid

_NONE: Final[frozenset[int]] = frozenset()

# Partitions by topic, as a request lists them.
OwnedPartitions = Iterable[tuple[Uuid, Iterable[int]]]


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """What a step depends on beside the member."""

    target_epoch: int
    target: Assignment
    # The topics that the member subscribes to and that exist.
    subscribed_topic_ids: frozenset[Uuid]
    subscription_changed: bool
    # Does any member have this partition now?
    is_owned: Callable[[Uuid, int], bool]
    # What the member says it has; None if it did not say.
    owned: Mapping[Uuid, frozenset[int]] | None

    def step(self, member: ConsumerGroupMember) -> ConsumerGroupMember:
        """The member after this step; the very same if there is nothing to do."""
        if member.state is MemberState.STABLE:
            if member.member_epoch != self.target_epoch:
                return self._next(member)
            return self._drop_unsubscribed(member) if self.subscription_changed else member
        if member.state is MemberState.UNREVOKED_PARTITIONS:
            if not self._still_owns(member.pending_revocation):
                return self._next(member)
            return self._drop_unsubscribed(member) if self.subscription_changed else member
        if member.state is MemberState.UNKNOWN and (self.owned is None or self.owned):
            raise KafkaError(
                ErrorCode.FENCED_MEMBER_EPOCH,
                "The member is in a state that this coordinator does not know: it must give up everything and rejoin.",
            )
        return self._next(member)

    def _still_owns(self, partitions: EpochAssignment) -> bool:
        """Has the member any of these? It has, unless it says what it has."""
        if self.owned is None:
            return True
        return any(not mine.isdisjoint(partitions.get(topic_id, ())) for topic_id, mine in self.owned.items())

    def _next(self, member: ConsumerGroupMember) -> ConsumerGroupMember:
        """Towards the target: revoke, else assign what is free."""
        kept, revoked = self._split(member.assigned)
        if revoked and self._still_owns(revoked):
            return member.moved_to(member.member_epoch, MemberState.UNREVOKED_PARTITIONS, kept, revoked)
        assigned, complete = self._with_free(member, kept)
        state = MemberState.STABLE if complete else MemberState.UNRELEASED_PARTITIONS
        return member.moved_to(self.target_epoch, state, assigned)

    def _wanted(self, topic_id: Uuid) -> frozenset[int]:
        """What the member shall have of a topic; nothing of one that it does not subscribe to any more."""
        if topic_id not in self.subscribed_topic_ids:
            return _NONE
        return self.target.get(topic_id, _NONE)

    def _split(self, assigned: EpochAssignment) -> tuple[EpochAssignment, EpochAssignment]:
        """What the member keeps, and what it must give up."""
        kept: dict[Uuid, Mapping[int, int]] = {}
        revoked: dict[Uuid, Mapping[int, int]] = {}
        for topic_id, partitions in assigned.items():
            wanted = self._wanted(topic_id)
            if partitions.keys() <= wanted:
                kept[topic_id] = partitions
                continue
            revoked[topic_id] = {p: epoch for p, epoch in partitions.items() if p not in wanted}
            left = {p: epoch for p, epoch in partitions.items() if p in wanted}
            if left:
                kept[topic_id] = left
        return kept, revoked

    def _with_free(self, member: ConsumerGroupMember, kept: EpochAssignment) -> tuple[EpochAssignment, bool]:
        """What the member keeps and what of its target nobody has; and whether that is all of its target."""
        assigned = dict(kept)
        complete = True
        for topic_id in self.target:
            mine = kept.get(topic_id, {})
            lacking = [p for p in self._wanted(topic_id) if p not in mine]
            # What the member itself is about to give up is as good as free.
            own = member.pending_revocation.get(topic_id, {})
            free = [p for p in lacking if p in own or not self.is_owned(topic_id, p)]
            complete = complete and len(free) == len(lacking)
            if free:
                assigned[topic_id] = {**mine, **dict.fromkeys(free, self.target_epoch)}
        return assigned, complete

    def _drop_unsubscribed(self, member: ConsumerGroupMember) -> ConsumerGroupMember:
        """The subscription has changed but the target is not made anew yet: give up other topics at once."""
        dropped = {t: p for t, p in member.assigned.items() if t not in self.subscribed_topic_ids}
        if not dropped:
            return member
        kept = {t: p for t, p in member.assigned.items() if t in self.subscribed_topic_ids}
        pending = dict(member.pending_revocation)
        for topic_id, partitions in dropped.items():
            pending[topic_id] = {**pending.get(topic_id, {}), **partitions}
        if self._still_owns(pending):
            return member.moved_to(member.member_epoch, MemberState.UNREVOKED_PARTITIONS, kept, pending)
        return replace(member, previous_member_epoch=member.member_epoch, assigned=kept)


def reset_epochs(assigned: EpochAssignment) -> EpochAssignment:
    """As if everything had been assigned in the very first epoch: for a static member that comes back anew."""
    return {t: dict.fromkeys(partitions, 0) for t, partitions in assigned.items()} if assigned else NOTHING


def owned_of(listed: OwnedPartitions | None) -> dict[Uuid, frozenset[int]] | None:
    """What a request lists, by topic."""
    if listed is None:
        return None
    owned: dict[Uuid, set[int]] = {}
    for topic_id, partitions in listed:
        owned.setdefault(topic_id, set()).update(partitions)
    return {topic_id: frozenset(partitions) for topic_id, partitions in owned.items()}
