"""What is wrong with a heartbeat of a consumer or streams group's member, whatever the state of the group."""

from typing import Final

from ottla.coordinator.group.modern_member import STATIC_LEAVE_EPOCH
from ottla.model.errors import ErrorCode, KafkaError

# A timeout that a heartbeat leaves out, because the group knows it already.
NOT_GIVEN: Final = -1


def require(holds: bool, message: str) -> None:
    if not holds:
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)


def require_text(text: str | None, field: str) -> None:
    require(text is None or bool(text.strip()), f"{field} is empty.")


def require_possible_epoch(epoch: int, instance_id: str | None) -> None:
    if epoch < STATIC_LEAVE_EPOCH:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"There is no MemberEpoch {epoch}.")
    if epoch == STATIC_LEAVE_EPOCH:
        require(instance_id is not None, "Only a member with an InstanceId leaves for a while.")
