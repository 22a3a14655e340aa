"""A classic group as __consumer_offsets has it, and back."""

from ottla.coordinator.group.classic.group import ClassicGroup
from ottla.coordinator.group.classic.member import NO_ASSIGNMENT, Member
from ottla.coordinator.group.classic.state import STABLE
from ottla.coordinator.result import CoordinatorRecord
from ottla.wire.messages.offsets_log import GroupMetadataKey, GroupMetadataValue, MemberMetadata

_UNKNOWN = -1


def group_record(group: ClassicGroup, assignments: dict[str, bytes]) -> CoordinatorRecord:
    """The group as it is, with what each member is assigned."""
    value = GroupMetadataValue(
        protocol_type=group.protocol_type,
        generation=group.generation_id,
        protocol=group.protocol_name,
        leader=group.leader_id,
        current_state_timestamp=_timestamp(group),
        members=[
            _member_row(group, member, assignments.get(member.member_id, NO_ASSIGNMENT))
            for member in group.members.values()
        ],
    )
    return CoordinatorRecord(GroupMetadataKey(group=group.group_id), value)


def _member_row(group: ClassicGroup, member: Member, assignment: bytes) -> MemberMetadata:
    assert group.protocol_name is not None, "members of a group without a protocol cannot be written"
    return MemberMetadata(
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout=member.rebalance_timeout_ms,
        session_timeout=member.session_timeout_ms,
        subscription=member.metadata[group.protocol_name],
        assignment=assignment,
    )


def new_group_record(group: ClassicGroup) -> CoordinatorRecord:
    """That the group is there; nobody has joined yet."""
    value = GroupMetadataValue(
        protocol_type="",
        generation=0,
        protocol=None,
        leader=None,
        current_state_timestamp=_timestamp(group),
        members=[],
    )
    return CoordinatorRecord(GroupMetadataKey(group=group.group_id), value)


def _timestamp(group: ClassicGroup) -> int:
    return _UNKNOWN if group.state_timestamp_ms is None else group.state_timestamp_ms


def restore(group: ClassicGroup, value: GroupMetadataValue) -> None:
    """Begin again from what the log says: the members are there, and have to show that they are alive."""
    group.generation_id = value.generation
    group.protocol_type_or_none = value.protocol_type or None
    group.protocol_name = value.protocol
    group.leader_id = value.leader
    timestamp = value.current_state_timestamp
    group.state_timestamp_ms = None if timestamp == _UNKNOWN else timestamp
    for row in value.members:
        group.add(_restored_member(value, row))
    if value.members:
        group.state = STABLE
    group.note_subscriptions()


def _restored_member(value: GroupMetadataValue, row: MemberMetadata) -> Member:
    no_rebalance_timeout = row.rebalance_timeout == _UNKNOWN  # before version 1
    return Member(
        row.member_id,
        row.group_instance_id,
        row.client_id,
        row.client_host,
        row.session_timeout if no_rebalance_timeout else row.rebalance_timeout,
        row.session_timeout,
        ((value.protocol or "", row.subscription),),
        row.assignment,
    )
