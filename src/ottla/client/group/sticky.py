"""A balanced assignment that moves as little as it can.

First every member keeps what it had, if it still may have it; then what nobody has goes to those with least; then
partitions move from those with more to those with less, until no move makes it more even. Members may be
subscribed to different topics. Pure, and the same input gives the same output.
"""

import heapq
from collections.abc import Iterable, Mapping

from ottla.model.ids import TopicPartition

Held = Mapping[str, tuple[list[TopicPartition], int]]


def assign_sticky(
    partition_counts: Mapping[str, int], topics: Mapping[str, set[str]], held: Held
) -> dict[str, list[TopicPartition]]:
    """Partitions by member; `topics` is in order of preference among equals."""
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
