"""What a member and its group core say to each other: partitions that change hands, and how a member is treated."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

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

    A listener of an AsyncConsumer may have coroutines. Partitions revoked are still the consumer's while it is
    told: it may commit. Lost ones are not: somebody else may have them already.
    """

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> Awaitable[None] | None:
        return None

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> Awaitable[None] | None:
        return None

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> Awaitable[None] | None:
        return self.on_partitions_revoked(partitions)
