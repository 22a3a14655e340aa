"""Which of the protocols that all members know a group uses, and what consumers say in theirs."""

import struct
from collections.abc import Iterable
from typing import Final

from ottla.coordinator.partitioning import java_hash_code
from ottla.model.errors import ErrorCode, KafkaError
from ottla.wire.codec import decode
from ottla.wire.messages.consumer_protocol import ConsumerProtocolSubscription

CONSUMER_PROTOCOL_TYPE: Final = "consumer"
_VERSION: Final = struct.Struct(">h")
# Every version of a subscription begins as version 0 does.
_SUBSCRIPTION_PREFIX_VERSION: Final = 0


def most_votes(votes: Iterable[str]) -> str:
    """The protocol that most members like best; of several, the one that Kafka's hash table holds first."""
    counts: dict[str, int] = {}
    for name in votes:
        counts[name] = counts.get(name, 0) + 1
    most = max(counts.values())
    winners = [name for name, count in counts.items() if count == most]
    return winners[0] if len(winners) == 1 else _first_in_hash_table(winners, len(counts))


def _first_in_hash_table(names: list[str], size: int) -> str:
    """Where Java's HashMap of so many entries would begin."""
    capacity = 16
    while size > capacity * 3 // 4:
        capacity *= 2

    def bucket(name: str) -> int:
        code = java_hash_code(name) & 0xFFFFFFFF
        return (code ^ code >> 16) & (capacity - 1)

    return min(names, key=bucket)


def subscribed_topics(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """The topics that consumers subscribe to; None if one of them says it in a way that is not understood."""
    topics: set[str] = set()
    try:
        for subscription in subscriptions:
            topics.update(parse_subscription(subscription).topics)
    except (KafkaError, struct.error):
        return None
    return frozenset(topics)


def parse_subscription(subscription: bytes) -> ConsumerProtocolSubscription:
    """The part that every version has; KafkaError or struct.error if it is something else."""
    if _VERSION.unpack_from(subscription)[0] < _SUBSCRIPTION_PREFIX_VERSION:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "a subscription has a version")
    parsed, _ = decode(
        ConsumerProtocolSubscription, subscription, _SUBSCRIPTION_PREFIX_VERSION, _VERSION.size
    )
    return parsed
