"""May a member commit an offset? By its epoch, and by the epoch in which it got the partition (KIP-1251)."""

from ottla.coordinator.group.consumer.member import ConsumerGroupMember
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import Uuid


def stale(member: ConsumerGroupMember, why: str) -> KafkaError:
    code = ErrorCode.ILLEGAL_GENERATION if member.uses_classic_protocol else ErrorCode.STALE_MEMBER_EPOCH
    return KafkaError(code, f"Member {member.member_id}: {why}.")


def check_commit(member: ConsumerGroupMember, epoch: int, topic: str, topic_id: Uuid, partition: int) -> None:
    assigned_in = member.assignment_epoch(topic_id, partition)
    if assigned_in is None:
        raise stale(member, f"{topic}-{partition} is neither assigned nor to be revoked")
    if epoch < assigned_in:
        raise stale(member, f"{topic}-{partition} was assigned in epoch {assigned_in}, after epoch {epoch}")
