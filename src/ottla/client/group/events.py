"""What a member, its group core and the application say to each other: subscriptions, and partitions that change hands.

The group core is a Group to its member, the member a Member to the group core: neither needs to know the other's class.
"""

import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from ottla.client.network import NetworkCore
from ottla.client.offsets import GroupMetadata
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition


class Change(Enum):
    """What can happen to partitions."""

    ASSIGNED = "assigned"
    REVOKED = "revoked"
    LOST = "lost"


@dataclass(slots=True, eq=False)
class Rebalance:
    """Partitions that change hands: something for the application to hear, and the member to wait for."""

    change: Change
    partitions: list[TopicPartition]
    then: Callable[[float], None] | None = None


class Subscribed:
    """What the application wants to read: topics, or an expression that the client or the broker matches."""

    def __init__(self) -> None:
        self.topics: frozenset[str] = frozenset()
        self.pattern: re.Pattern[str] | None = None
        self.server_pattern: str | None = None
        self._matched_version = -1

    def __bool__(self) -> bool:
        return bool(self.topics) or self.pattern is not None or self.server_pattern is not None

    def match(self, network: NetworkCore, exclude_internal: bool) -> None:
        """Look for topics the client-side expression matches, if the picture is new."""
        metadata = network.metadata
        if self.pattern is None or metadata.version == self._matched_version or not metadata.covers_all:
            return
        self._matched_version = metadata.version
        self.topics = frozenset(
            name
            for name, info in metadata.topics.items()
            if self.pattern.fullmatch(name) and not (info.is_internal and exclude_internal)
        )

    @property
    def is_settled(self) -> bool:
        """False while a client-side expression waits for its first list of topics."""
        return self.pattern is None or self._matched_version >= 0


class Group(Protocol):
    """What a member needs of its group core."""

    subscribed: Subscribed
    changes: int  # counts how often partitions have changed hands

    @property
    def is_active(self) -> bool:
        """The application is subscribed and polls."""
        ...

    @property
    def is_settled(self) -> bool:
        """The application has heard of every event."""
        ...

    @property
    def owned(self) -> list[TopicPartition]: ...

    def push(
        self,
        change: Change,
        partitions: Iterable[TopicPartition],
        then: Callable[[float], None] | None = None,
    ) -> None:
        """Have the application hear of this; `then` is called when it has."""
        ...

    def interrupt(self) -> None:
        """Events that the application has not heard of are out of date."""
        ...

    def report(self, error: KafkaError) -> None:
        """Have the next poll raise this."""
        ...


class Member(Protocol):
    """What the two protocols have in common."""

    fatal: KafkaError | None

    @property
    def identity(self) -> GroupMetadata: ...

    def step(self, now: float) -> None: ...

    def next_deadline(self, now: float) -> float: ...

    def rejected(self, code: ErrorCode, who: GroupMetadata, now: float) -> None:
        """A commit of `who` was answered with an error that means: you are not a member."""
        ...

    def rejoin(self, reason: str) -> None:
        """The application wants the group to assign anew, where a member can ask for that."""
        ...

    def expired(self, now: float) -> None:
        """The application has not polled for too long: leave, so that somebody else may get on."""
        ...

    def leave(self, now: float, deadline_ms: float, on_done: Callable[[], None], *, remain: bool) -> None:
        """Leave in peace (a static member: only for now); `remain` keeps the place in the group."""
        ...


class RebalanceListener:
    """Hears what the group gives and takes; override what is of interest. Called from within poll and close.

    A listener of an AsyncConsumer may have coroutines. Partitions revoked are still the consumer's during the
    call: it may commit. Lost ones are not: somebody else may have them already.
    """

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> Awaitable[None] | None:
        return None

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> Awaitable[None] | None:
        return None

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> Awaitable[None] | None:
        return self.on_partitions_revoked(partitions)
