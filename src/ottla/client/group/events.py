"""What a member and its group core say to each other: partitions that change hands, and how a member is treated."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from ottla.client.group.offset_messages import GroupMetadata
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
