"""What members of consumer, share and streams groups have in common: what their epochs say, and how they change."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ottla.model.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

# What a member says in the place of its epoch: that it joins, leaves, or leaves for a while and keeps its instance id.
JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
STATIC_LEAVE_EPOCH: Final = -2

M = TypeVar("M", bound="DataclassInstance")


def changed(member: M, **fields: Any) -> M:
    """The member with these fields; the very same if none of them is new."""
    if all(getattr(member, name) == value for name, value in fields.items()):
        return member
    return replace(member, **fields)


def fenced(member_epoch: int, epoch: int) -> KafkaError:
    """For a member that says it is in an epoch in which it cannot be."""
    return KafkaError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The member is in epoch {member_epoch}, not in {epoch}: it must give up everything and rejoin.",
    )
