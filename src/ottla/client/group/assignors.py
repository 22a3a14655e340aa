"""Who gets which partitions: the assignors a classic group's leader may be asked to run.

Names, user data and outcomes are those of the Java client for range and roundrobin; the sticky ones keep what
members have and are balanced, as Kafka's are, by an algorithm of our own. An assignor of one's own is an
object with these methods, given in `partition_assignment_strategy`. Pure, but for what `on_assignment` notes.
"""

import heapq
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from ottla.client.errors import ConfigError
from ottla.client.group.protocol import (
    NO_GENERATION,
    Subscription,
    decode_generation,
    decode_sticky,
    encode_generation,
    encode_sticky,
)
from ottla.model.ids import TopicPartition

Held = Mapping[str, tuple[list[TopicPartition], int]]


def assign_sticky(
    partition_counts: Mapping[str, int], topics: Mapping[str, set[str]], held: Held
) -> dict[str, list[TopicPartition]]:
    """A balanced assignment that moves as little as it can: partitions by member.

    First every member keeps what it had, if it still may have it; then what nobody has goes to those with least; then
    partitions move from those with more to those with less, until no move makes it more even. Members may be
    subscribed to different topics; `topics` is in order of preference among equals. Same input, same output.
    """
    kept = _kept(partition_counts, topics, held)
    owned = {tp for partitions in kept.values() for tp in partitions}
    everything = [
        TopicPartition(topic, number)
        for topic in sorted({topic for wanted in topics.values() for topic in wanted})
        for number in range(partition_counts.get(topic, 0))
    ]
    missing = [tp for tp in everything if tp not in owned]
    if all(wanted == next(iter(topics.values())) for wanted in topics.values()):
        _level(kept, missing, len(everything))
    else:
        _fill(kept, missing, topics)
        _even_out(kept, topics)
    return {member: sorted(partitions) for member, partitions in kept.items()}


def _kept(
    partition_counts: Mapping[str, int], topics: Mapping[str, set[str]], held: Held
) -> dict[str, list[TopicPartition]]:
    """What each member keeps: the newest generation's claim counts, and two equal claims cancel each other."""
    claims: dict[TopicPartition, tuple[int, str | None]] = {}
    for member in topics:
        partitions, generation = held.get(member, ([], -1))
        for tp in partitions:
            if tp.topic not in topics[member] or tp.partition >= partition_counts.get(tp.topic, 0):
                continue
            best, _ = claims.get(tp, (-2, None))
            if generation > best:
                claims[tp] = (generation, member)
            elif generation == best:
                claims[tp] = (generation, None)
    kept: dict[str, list[TopicPartition]] = {member: [] for member in topics}
    for tp, (_, owner) in sorted(claims.items()):
        if owner is not None:
            kept[owner].append(tp)
    return kept


def _level(kept: dict[str, list[TopicPartition]], missing: list[TopicPartition], total: int) -> None:
    """All members may have everything: nobody has more than one above anybody else."""
    if not kept:
        return
    least, over = divmod(total, len(kept))
    missing = list(missing)
    for partitions in sorted(kept.values(), key=len, reverse=True):
        allowed = least
        if over and len(partitions) > least:
            allowed, over = least + 1, over - 1
        missing += partitions[allowed:]
        del partitions[allowed:]
    _fill(kept, sorted(missing), None)


def _fill(
    kept: dict[str, list[TopicPartition]],
    missing: Iterable[TopicPartition],
    topics: Mapping[str, set[str]] | None,
) -> None:
    """What nobody has goes to whoever has least and may have it (anybody, if `topics` is None)."""
    if topics is None:
        heap = [(len(partitions), index, member) for index, (member, partitions) in enumerate(kept.items())]
        heapq.heapify(heap)
        for tp in missing:
            load, index, member = heap[0]
            kept[member].append(tp)
            heapq.heapreplace(heap, (load + 1, index, member))
        return
    candidates = _candidates(topics)
    # The choosy partitions first: whoever can go anywhere fills the gaps that are left.
    for tp in sorted(missing, key=lambda tp: (len(candidates[tp.topic]), tp)):
        kept[min(candidates[tp.topic], key=lambda member: len(kept[member]))].append(tp)


def _candidates(topics: Mapping[str, set[str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for member, wanted in topics.items():
        for topic in wanted:
            found.setdefault(topic, []).append(member)
    return found


def _even_out(kept: dict[str, list[TopicPartition]], topics: Mapping[str, set[str]]) -> None:
    """Move single partitions as long as that brings two members nearer to each other."""
    candidates = _candidates(topics)
    moved = True
    while moved:  # ends: each move makes the sum of the squares of the loads smaller
        moved = False
        for giver in sorted(kept, key=lambda member: len(kept[member]), reverse=True):
            for tp in list(kept[giver]):
                taker = min(candidates[tp.topic], key=lambda member: len(kept[member]))
                if len(kept[taker]) + 1 < len(kept[giver]):
                    kept[giver].remove(tp)
                    kept[taker].append(tp)
                    moved = True


Assignment = dict[str, list[TopicPartition]]


class Assignor(Protocol):
    """What a classic member needs of an assignor."""

    name: str
    cooperative: bool  # whether members may keep partitions while they rebalance (KIP-429)

    def user_data(self, topics: Iterable[str]) -> bytes | None:
        """The subscription's user data, for the leader's assignor."""
        ...

    def assign(
        self, partition_counts: Mapping[str, int], members: Mapping[str, Subscription]
    ) -> Assignment: ...

    def on_assignment(self, partitions: Iterable[TopicPartition], generation: int) -> None:
        """This member got these."""
        ...


class _Stateless:
    cooperative = False

    def user_data(self, topics: Iterable[str]) -> bytes | None:
        return None

    def on_assignment(self, partitions: Iterable[TopicPartition], generation: int) -> None:
        """Nothing to remember."""


class RangeAssignor(_Stateless):
    """Each topic by itself: neighbouring partitions to each member, the first ones get one more."""

    name = "range"

    def assign(self, partition_counts: Mapping[str, int], members: Mapping[str, Subscription]) -> Assignment:
        out: Assignment = {member: [] for member in members}
        ordered = _in_order(members)
        for topic in sorted({topic for subscription in members.values() for topic in subscription.topics}):
            count = partition_counts.get(topic, 0)
            wanting = [member for member in ordered if topic in members[member].topics]
            each, extra = divmod(count, len(wanting))
            start = 0
            for index, member in enumerate(wanting):
                end = start + each + (index < extra)
                out[member] += [TopicPartition(topic, number) for number in range(start, end)]
                start = end
        return out


class RoundRobinAssignor(_Stateless):
    """All partitions of all topics, dealt out one by one."""

    name = "roundrobin"

    def assign(self, partition_counts: Mapping[str, int], members: Mapping[str, Subscription]) -> Assignment:
        out: Assignment = {member: [] for member in members}
        ordered = _in_order(members)
        turn = 0
        for topic in sorted({topic for subscription in members.values() for topic in subscription.topics}):
            for number in range(partition_counts.get(topic, 0)):
                while topic not in members[ordered[turn % len(ordered)]].topics:
                    turn += 1
                out[ordered[turn % len(ordered)]].append(TopicPartition(topic, number))
                turn += 1
        return out


class StickyAssignor:
    """Balanced, and members keep what they had as far as balance allows (KIP-54)."""

    name = "sticky"
    cooperative = False

    def __init__(self) -> None:
        self._held: list[TopicPartition] | None = None
        self._generation = NO_GENERATION

    def user_data(self, topics: Iterable[str]) -> bytes | None:
        return None if self._held is None else encode_sticky(self._held, self._generation)

    def on_assignment(self, partitions: Iterable[TopicPartition], generation: int) -> None:
        self._held, self._generation = list(partitions), generation

    def assign(self, partition_counts: Mapping[str, int], members: Mapping[str, Subscription]) -> Assignment:
        # An eager member has given up what it owned before it joined: what it had is in its user data.
        held = {member: decode_sticky(subscription.user_data) for member, subscription in members.items()}
        topics = {member: set(members[member].topics) for member in _in_order(members)}
        return assign_sticky(partition_counts, topics, held)


class CooperativeStickyAssignor:
    """The same, but a partition that changes hands is first given up by its owner (KIP-429)."""

    name = "cooperative-sticky"
    cooperative = True

    def __init__(self) -> None:
        self._generation = NO_GENERATION

    def user_data(self, topics: Iterable[str]) -> bytes | None:
        return encode_generation(self._generation)

    def on_assignment(self, partitions: Iterable[TopicPartition], generation: int) -> None:
        self._generation = generation

    def assign(self, partition_counts: Mapping[str, int], members: Mapping[str, Subscription]) -> Assignment:
        held = {member: (list(s.owned), _generation(s)) for member, s in members.items()}
        topics = {member: set(members[member].topics) for member in _in_order(members)}
        wanted = assign_sticky(partition_counts, topics, held)
        return _without_transfers(wanted, held)


def _generation(subscription: Subscription) -> int:
    """In the subscription since its version 2, before that in the user data."""
    if subscription.generation >= 0:
        return subscription.generation
    return decode_generation(subscription.user_data)


def _without_transfers(
    wanted: Assignment, held: Mapping[str, tuple[list[TopicPartition], int]]
) -> Assignment:
    """Partitions somebody else still owns wait for the next rebalance, which follows at once."""
    owned = {member: set(partitions) for member, (partitions, _) in held.items()}
    taken = set().union(*owned.values()) if owned else set()
    return {
        member: [tp for tp in partitions if tp in owned[member] or tp not in taken]
        for member, partitions in wanted.items()
    }


def _in_order(members: Mapping[str, Subscription]) -> list[str]:
    """Static members by their instance id, then the others by their member id: the order of the Java client."""

    def key(member: str) -> tuple[bool, str]:
        instance_id = members[member].instance_id
        return instance_id is None, member if instance_id is None else instance_id

    return sorted(members, key=key)


BUILT_IN: dict[str, type[Any]] = {
    assignor.name: assignor
    for assignor in (RangeAssignor, RoundRobinAssignor, StickyAssignor, CooperativeStickyAssignor)
}


def make_assignors(strategy: str | Iterable[Any]) -> list[Assignor]:
    """The assignors a setting names, in its order of preference; Java's class names are understood too."""
    given = strategy.split(",") if isinstance(strategy, str) else list(strategy)
    assignors = [_make(item.strip() if isinstance(item, str) else item) for item in given]
    if not assignors:
        raise ConfigError("partition_assignment_strategy names no assignor")
    if len({assignor.name for assignor in assignors}) < len(assignors):
        raise ConfigError("partition_assignment_strategy names an assignor twice")
    return assignors


def _make(item: Any) -> Assignor:
    if not isinstance(item, str):
        assignor: Assignor = item() if isinstance(item, type) else item
        return assignor
    for name, kind in BUILT_IN.items():
        if item in (name, f"org.apache.kafka.clients.consumer.{kind.__name__}"):
            made: Assignor = kind()
            return made
    raise ConfigError(f"unknown assignor {item!r}; there are {', '.join(BUILT_IN)}")
