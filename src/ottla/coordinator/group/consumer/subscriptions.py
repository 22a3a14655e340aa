"""How many members subscribe to what: the counts that a group keeps, and what follows from them."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeVar

from ottla.coordinator.group.assignors.api import SubscriptionType
from ottla.coordinator.group.assignors.java_order import grown_capacity, hash_order
from ottla.coordinator.group.consumer.member import ConsumerGroupMember
from ottla.coordinator.partitioning import java_hash_code
from ottla.coordinator.timeline import TimelineDict

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
