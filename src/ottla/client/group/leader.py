"""What a classic group's leader does: run the assignor over everybody's subscription, and watch the topics after.

The metadata of all the group's topics is needed first; later, when a topic has grown or gone, the leader has
the group rebalance. Made for one generation; owned by the classic member.
"""

from collections.abc import Sequence
from typing import Any

from ottla.client.group.assignors import Assignor
from ottla.client.group.protocol import decode_subscription, encode_assignment
from ottla.client.network import NetworkCore
from ottla.model.errors import ErrorCode, KafkaError

# Topics nobody speaks of are forgotten by the metadata: those of the other members are spoken of so often.
_LOOK_AGAIN_MS = 1_000.0


class Leader:
    """See the module. `skips`: a static leader came back and nothing has changed (KIP-814)."""

    def __init__(
        self, network: NetworkCore, assignor: Assignor, members: Sequence[Any], *, skips: bool
    ) -> None:
        self._network = network
        self._assignor = assignor
        self._members = {
            member.member_id: decode_subscription(member.metadata, member.group_instance_id)
            for member in members
        }
        self._skips = skips
        self._topics = sorted({topic for member in self._members.values() for topic in member.topics})
        self._assigned_from: dict[str, int] = {}
        self._seen_version = -1
        self._look_again_ms = float("-inf")

    def try_assign(self, now: float) -> list[tuple[str, bytes]] | None:
        """Each member's assignment, as bytes; None while the topics are not known yet."""
        counts = self._counts(now)
        if counts is None:
            return None
        self._assigned_from = counts
        if self._skips:
            return []
        try:
            assignment = self._assignor.assign(counts, self._members)
        except Exception as error:
            raise KafkaError(
                ErrorCode.UNKNOWN_SERVER_ERROR, f"the assignor {self._assignor.name!r} failed: {error!r}"
            ) from error
        return [(member, encode_assignment(partitions)) for member, partitions in assignment.items()]

    def has_changed(self, now: float) -> bool:
        """Would the assignor see other topics or partitions now?"""
        version = self._network.metadata.version
        if version == self._seen_version and now < self._look_again_ms:
            return False
        self._seen_version, self._look_again_ms = version, now + _LOOK_AGAIN_MS
        counts = self._counts(now)
        return counts is not None and counts != self._assigned_from

    def _counts(self, now: float) -> dict[str, int] | None:
        metadata = self._network.metadata
        counts: dict[str, int] = {}
        for topic in self._topics:
            metadata.want(topic, now)
            info = metadata.topic(topic)
            if info is None:
                return None
            if info.partitions and info.error is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                counts[topic] = len(info.partitions)
        return counts
